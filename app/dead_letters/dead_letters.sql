-- Dead letters: replay, purge, and retention. Lists and groups are in listing.py. leases.sql
-- explains why a statement with a join also has the condition `id = ANY`.

-- fragment: removed_job
-- The columns of RemovedRow.
id, job_type, group_key, lease_seconds, retry, priority, max_attempts, tags, metadata, traceparent, tracestate,
payload, timeout_seconds

-- fragment: kept_columns
-- The columns that a replay copies unchanged from the dead letter to the job.
attempts, job_type, group_key, lease_seconds, retry, checkpoint, tags, metadata, traceparent, tracestate, replayed_from

-- fragment: deleted_counted
-- Subtracts the `deleted` rows from the counter `dead`.
counted AS (
    INSERT INTO stat_deltas (lane, dead)
    SELECT :lane, -count(*)
    FROM deleted
    HAVING count(*) > 0
)

-- name: replay
-- row: MovedJobRow
-- dead -> ready | pending | scheduled
--
-- The job keeps its id and its attempt records (`attempts`); the counter `attempt` starts again at
-- 0. Of two concurrent replays, one finds no row.
--
--  * :payload has the new payload of each job, or NULL if the payload is unchanged.
--  * :priority and :max_attempts override the values of all jobs, unless they are NULL.
--  * For a job without dependents, has_dependents is NULL rather than false, because NULL takes no
--    space in the row.
WITH deleted AS (
    DELETE FROM dead_letters
    USING unnest(:id::uuid[], :state::text[], :run_at::timestamptz[], :payload::text[])
        AS input (id, state, run_at, payload)
    WHERE dead_letters.lane = :lane AND dead_letters.id = ANY(:id::uuid[]) AND dead_letters.id = input.id
    RETURNING dead_letters.*, input.state AS next_state, input.run_at AS next_run_at,
        coalesce(input.payload, dead_letters.payload) AS next_payload
),
changed AS (
    INSERT INTO jobs (
        lane, id, state, run_at, deliveries, replay_count, priority, max_attempts,
        {{kept_columns}},
        payload, timeout_seconds, unique_key, schedule, depends_on, has_dependents
    )
    SELECT
        lane, id,
        CASE WHEN next_state = 'ready' AND {{row_is_held}} THEN 'pending' ELSE next_state END,
        next_run_at, deliveries, replay_count + 1, coalesce(:priority, priority), coalesce(:max_attempts, max_attempts),
        {{kept_columns}},
        next_payload, timeout_seconds, unique_key, schedule, depends_on,
        nullif(
            EXISTS (SELECT FROM dependents WHERE dependents.lane = :lane AND dependents.parent_id = deleted.id), false
        )
    FROM deleted
    RETURNING {{moved_job}}, priority
),
{{covering_spans}},
counted AS (
    INSERT INTO stat_deltas (lane, dead, ready, scheduled)
    SELECT :lane, -count(*), {{ready_and_scheduled_counts}}
    FROM changed
    HAVING count(*) > 0
)
SELECT {{moved_job}}
FROM changed;

-- name: payloads
-- The payloads of dead letters, for a replay with a merge patch.
SELECT id, payload
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: remove
-- row: RemovedRow
-- dead -> (a new job in another queue)
--
-- The caller inserts the new job in the same transaction.
WITH deleted AS (
    DELETE FROM dead_letters
    WHERE lane = :lane AND id = ANY(:ids::uuid[])
    RETURNING {{removed_job}}
),
{{deleted_counted}}
SELECT {{removed_job}}
FROM deleted;

-- name: purge
-- dead -> (deleted)
WITH deleted AS (
    DELETE FROM dead_letters
    WHERE lane = :lane AND id = ANY(:ids::uuid[])
    RETURNING id
),
{{deleted_counted}}
SELECT id
FROM deleted;

-- name: dead_letters_past_retention
-- Reads the first rows of the index dead_letters_dead_at.
SELECT id
FROM dead_letters
WHERE dead_at < :before
ORDER BY dead_at
LIMIT :limit;
