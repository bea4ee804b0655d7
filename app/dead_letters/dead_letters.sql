-- Dead letters: replayed, purged, and deleted by retention. Lists and groups are in listing.py.

-- name: replay
-- row: MovedJobRow
-- dead -> ready | pending | scheduled
-- The job keeps its id and its history; its attempts start again at 0.
-- Of two concurrent replays, one finds no row.
-- $3 states, $4 run_ats, $5 payloads (NULL: unchanged), then the overrides. $8: held groups, see
-- jobs.sql.
WITH deleted AS (
    DELETE FROM dead_letters
    USING unnest($2::uuid[], $3::text[], $4::timestamptz[], $5::text[]) AS input (id, state, run_at, payload)
    WHERE dead_letters.lane = $1 AND dead_letters.id = ANY($2::uuid[]) AND dead_letters.id = input.id
    RETURNING dead_letters.*, input.state AS next_state, input.run_at AS next_run_at, coalesce(input.payload, dead_letters.payload) AS next_payload
),
replayed AS (
    INSERT INTO jobs (
        lane, id, state, run_at, deliveries, replay_count, priority, max_attempts, attempts, job_type, group_key, lease_seconds, retry,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, timeout_seconds, unique_key, schedule, depends_on,
        has_dependents
    )
    SELECT
        lane, id,
        CASE
            WHEN next_state = 'ready'
                AND (coalesce(group_key, '') = ANY($8::text[]) OR (group_key IS NOT NULL AND '*' = ANY($8::text[]))) THEN 'pending'
            ELSE next_state
        END,
        next_run_at, deliveries, replay_count + 1, coalesce($6, priority), coalesce($7, max_attempts), attempts,
        job_type, group_key, lease_seconds, retry, checkpoint, tags, metadata, traceparent, tracestate, replayed_from, next_payload,
        timeout_seconds, unique_key, schedule, depends_on,
        nullif(EXISTS (SELECT FROM dependents WHERE dependents.lane = $1 AND dependents.parent_id = deleted.id), false)
    FROM deleted
    RETURNING id, state, job_type, group_key, run_at, has_dependents, admission
),
counted AS (
    INSERT INTO stat_deltas (lane, dead, ready, scheduled)
    SELECT $1, -count(*), count(*) FILTER (WHERE state IN ('ready', 'pending')), count(*) FILTER (WHERE state = 'scheduled')
    FROM replayed
    HAVING count(*) > 0
)
SELECT id, state, job_type, group_key, run_at, has_dependents, admission
FROM replayed;

-- name: payloads
SELECT id, payload
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: remove
-- row: RemovedRow
-- dead -> (a new job in another queue)
-- The caller inserts that job in the same transaction.
WITH deleted AS (
    DELETE FROM dead_letters
    WHERE lane = $1 AND id = ANY($2::uuid[])
    RETURNING id, job_type, group_key, lease_seconds, retry, priority, max_attempts, tags, metadata, traceparent, tracestate, payload,
        timeout_seconds
),
counted AS (
    INSERT INTO stat_deltas (lane, dead)
    SELECT $1, -count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, job_type, group_key, lease_seconds, retry, priority, max_attempts, tags, metadata, traceparent, tracestate, payload,
    timeout_seconds
FROM deleted;

-- name: purge
-- dead -> (deleted)
WITH purged AS (
    DELETE FROM dead_letters
    WHERE lane = $1 AND id = ANY($2::uuid[])
    RETURNING id
),
counted AS (
    INSERT INTO stat_deltas (lane, dead)
    SELECT $1, -count(*)
    FROM purged
    HAVING count(*) > 0
)
SELECT id
FROM purged;

-- name: expired_dead_letters
-- For retention: reads a bounded range at the start of dead_letters_dead_at.
SELECT id
FROM dead_letters
WHERE dead_at < $1
ORDER BY dead_at
LIMIT $2;
