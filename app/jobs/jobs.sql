-- Jobs before they are leased: inserted, waiting, due, updated and cancelled.
--
--  * A job that waits for admission (app/concurrency) is pending. The API shows and counts it as
--    ready, but no index that a claim reads contains it.
--  * The held groups of a lane are the groups whose jobs need admission: '*' is every group, '' is
--    the jobs without a group, NULL means that no job needs admission.
--  * Lock order: see leases.sql.
--  * A statement that has an id finds its row by the primary key. Its WHERE has no condition that a
--    partial index could answer (state = 'ready' or 'scheduled', lease_expires_at IS NOT NULL),
--    because with stale statistics the planner would use that index (3.3 ms instead of 0.07).

-- name: enqueue
-- (nothing) -> ready | pending | scheduled | blocked | running.
--
-- The broker has generated the ids and has decided which jobs are due, and which are leased to
-- waiting pollers (running). In columns that are never NULL, a value that all rows share is sent
-- once, as the first element of its array: it replaces the NULLs with which `unnest` fills up the
-- shorter array.
WITH added AS (
    INSERT INTO jobs (
        lane, id, state, state_reason, run_at, priority, max_attempts, job_type, group_key, lease_seconds, retry, tags, metadata,
        traceparent, tracestate, replayed_from, payload, expires_at, timeout_seconds, unique_key, schedule, on_parent_failure, has_dependents,
        waiting_for, depends_on, worker_id, started_at, lease_token, lease_expires_at, deadline_at, attempt, deliveries
    )
    SELECT $1, id, coalesce(state, ($3::text[])[1]), reason, coalesce(run_at, ($5::timestamptz[])[1]),
        coalesce(priority, ($6::smallint[])[1]), coalesce(max_attempts, ($7::smallint[])[1]), coalesce(job_type, ($8::text[])[1]),
        group_key, lease_seconds, retry, tags, metadata, traceparent, tracestate, replayed_from, payload, expires_at, timeout_seconds,
        unique_key, schedule, on_parent_failure, has_dependents, waiting_for::uuid[], depends_on::uuid[], worker_id, started_at,
        lease_token, lease_expires_at, deadline_at, (lease_token IS NOT NULL)::int, (lease_token IS NOT NULL)::int
    FROM unnest(
        $2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::smallint[], $7::smallint[], $8::text[], $9::text[], $10::int[],
        $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::uuid[], $17::text[], $18::timestamptz[], $19::int[],
        $20::text[], $21::text[], $22::text[], $23::boolean[], $24::text[], $25::text[], $26::text[], $27::timestamptz[], $28::uuid[],
        $29::timestamptz[], $30::timestamptz[]
    ) AS new (
        id, state, reason, run_at, priority, max_attempts, job_type, group_key, lease_seconds, retry, tags, metadata, traceparent,
        tracestate, replayed_from, payload, expires_at, timeout_seconds, unique_key, schedule, on_parent_failure, has_dependents, waiting_for, depends_on,
        worker_id, started_at, lease_token, lease_expires_at, deadline_at
    )
    RETURNING state
)
INSERT INTO stat_deltas (lane, ready, scheduled, blocked, running, enqueued)
SELECT $1, count(*) FILTER (WHERE state IN ('ready', 'pending')), count(*) FILTER (WHERE state = 'scheduled'),
    count(*) FILTER (WHERE state = 'blocked'), count(*) FILTER (WHERE state = 'running'), count(*)
FROM added;

-- name: live_jobs
-- row: JobRow
SELECT lane, id, job_type, payload, state, state_reason, priority, attempt, max_attempts, crashes, deliveries, run_at, started_at,
    NULL::timestamptz AS finished_at, worker_id, lease_expires_at, progress, checkpoint, NULL::text AS result, attempts, group_key,
    tags, metadata, replayed_from, replay_count, cancel_requested_at, unique_key, schedule, depends_on
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: live_ids
SELECT id
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: dead_ids
SELECT id
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: finished_jobs
-- row: JobRow
-- Reads the partitions that are not dropped yet. A job whose retention has ended is not returned.
SELECT lane, id, job_type, payload, state, state_reason, priority, attempt, max_attempts, crashes, deliveries, run_at, started_at,
    finished_at, worker_id, NULL::timestamptz AS lease_expires_at, progress, checkpoint, result, attempts, group_key,
    tags, metadata, replayed_from, replay_count, cancel_requested_at, unique_key, schedule, depends_on
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3;

-- name: dead_jobs
-- row: JobRow
SELECT lane, id, job_type, payload, 'dead' AS state, reason AS state_reason, priority, attempt, max_attempts, crashes, deliveries,
    run_at, started_at, dead_at AS finished_at, worker_id, NULL::timestamptz AS lease_expires_at, progress, checkpoint,
    NULL::text AS result, attempts, group_key, tags, metadata, replayed_from, replay_count, NULL::timestamptz AS cancel_requested_at,
    unique_key, schedule, depends_on
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: update_job
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> scheduled | blocked | ready | pending.
--
--  * Changes only the parameters that are not NULL. The row of a running job does not match.
--  * A ready job that is postponed loses its admission. A retry that has kept its admission keeps
--    it. A job without admission waits for it.
--  * A new payload removes an unused lease token: a late settlement would be about the old payload.
WITH old AS (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = $2 AND lease_expires_at IS NULL
    FOR UPDATE
),
changed AS (
    UPDATE jobs
    SET priority = coalesce($3, priority),
        run_at = coalesce($4, run_at),
        payload = coalesce($5, payload),
        max_attempts = coalesce($6, max_attempts),
        tags = coalesce($7, tags),
        metadata = coalesce($8, metadata),
        lease_token = CASE WHEN $5 IS NULL OR settled_as IS NOT NULL THEN lease_token END,
        state = CASE
            WHEN $4 IS NULL OR jobs.state = 'blocked' THEN jobs.state
            WHEN $4 > $9 THEN 'scheduled'
            WHEN jobs.state IN ('ready', 'pending') THEN jobs.state
            WHEN admission IS NOT NULL THEN 'ready'
            WHEN coalesce(group_key, '') = ANY($10::text[]) OR (group_key IS NOT NULL AND '*' = ANY($10::text[])) THEN 'pending'
            ELSE 'ready'
        END,
        admission = CASE WHEN $4 IS NULL OR $4 <= $9 OR jobs.state = 'scheduled' THEN admission END,
        state_reason = CASE WHEN $4 IS NULL OR jobs.state = 'blocked' THEN state_reason END
    FROM old
    WHERE jobs.lane = $1 AND jobs.id = $2 AND jobs.id = old.id
    RETURNING jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, scheduled)
    SELECT $1,
        (changed.state IN ('ready', 'pending'))::int - (old.state IN ('ready', 'pending'))::int,
        (changed.state = 'scheduled')::int - (old.state = 'scheduled')::int
    FROM old, changed
    WHERE changed.state <> old.state
)
SELECT id, state, job_type, group_key, run_at, has_dependents, admission
FROM changed;

-- name: replace_waiting
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> scheduled | blocked | ready | pending (new body).
--
-- The waiting job with the unique key takes the fields of the new job. It keeps its id, its age,
-- its group and its attempts. The checkpoint and progress of the old body are removed. So is an
-- unused lease token, because a late settlement would be about the old body.
WITH old AS (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = $2 AND lease_expires_at IS NULL
    FOR UPDATE
),
replaced AS (
    UPDATE jobs
    SET state = CASE
            WHEN jobs.state = 'blocked' THEN jobs.state
            WHEN $3::timestamptz > $4 THEN 'scheduled'
            WHEN jobs.state IN ('ready', 'pending') THEN jobs.state
            WHEN admission IS NOT NULL THEN 'ready'
            WHEN coalesce(group_key, '') = ANY($5::text[]) OR (group_key IS NOT NULL AND '*' = ANY($5::text[])) THEN 'pending'
            ELSE 'ready'
        END,
        admission = CASE WHEN $3 <= $4 OR jobs.state = 'scheduled' THEN admission END,
        state_reason = CASE WHEN jobs.state = 'blocked' THEN state_reason END,
        run_at = $3, priority = $6, max_attempts = $7, job_type = $8, lease_seconds = $9, retry = $10, tags = $11, metadata = $12,
        payload = $13, expires_at = $14, timeout_seconds = $15, traceparent = $16, tracestate = $17, checkpoint = NULL, progress = NULL,
        lease_token = CASE WHEN settled_as IS NOT NULL THEN lease_token END
    FROM old
    WHERE jobs.lane = $1 AND jobs.id = $2 AND jobs.id = old.id
    RETURNING jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, scheduled)
    SELECT $1,
        (replaced.state IN ('ready', 'pending'))::int - (old.state IN ('ready', 'pending'))::int,
        (replaced.state = 'scheduled')::int - (old.state = 'scheduled')::int
    FROM old, replaced
    WHERE replaced.state <> old.state
)
SELECT id, state, job_type, group_key, run_at, has_dependents, admission
FROM replaced;

-- name: cancel_waiting
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> cancelled.
--
-- The row of a running job does not match: its worker is asked to stop instead. $6 is the reason.
-- Only a cancellation by the user sets cancel_requested_at, not one because a parent failed.
WITH locked AS (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND lease_expires_at IS NULL
    ORDER BY id
    FOR UPDATE
),
deleted AS (
    DELETE FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked))
    RETURNING *
),
moved AS (
    INSERT INTO finished_jobs (
        lane, id, state, state_reason, finished_at, keep_until, archive, cancel_requested_at, attempt, crashes, deliveries, run_at,
        started_at, priority, max_attempts, replay_count, lease_token, settled_as, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on
    )
    SELECT
        lane, id, 'cancelled', $6::text, $3::timestamptz, $4, $5, CASE WHEN $6 = 'cancelled_by_user' THEN $3::timestamptz END, attempt, crashes, deliveries, run_at,
        started_at, priority, max_attempts, replay_count, lease_token, settled_as, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on
    FROM deleted
),
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'cancelled'
    FROM deleted
    WHERE has_dependents
    ON CONFLICT (lane, id) DO UPDATE
    SET state = excluded.state
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready, cancelled)
    SELECT $1, -count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state = 'blocked'),
        -count(*) FILTER (WHERE state IN ('ready', 'pending')), count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'cancelled' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission
FROM deleted;

-- name: kill_unstarted
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> dead.
--
-- The job missed its start deadline (expires_at). A run that ends clears expires_at, unless the
-- delivery never reached its worker.
WITH locked AS (
    SELECT id, expires_at
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND lease_expires_at IS NULL
    ORDER BY id
    FOR UPDATE
),
deleted AS (
    DELETE FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE expires_at <= $3))
    RETURNING *
),
dead_lettered AS (
    INSERT INTO dead_letters (
        lane, id, attempt, crashes, deliveries, priority, max_attempts, replay_count, run_at, started_at, dead_at, lease_token, settled_as,
        reason, error_type, fingerprint, worker_id, job_type, group_key, lease_seconds, retry, attempts, progress, checkpoint, tags,
        metadata, traceparent, tracestate, replayed_from, payload, timeout_seconds, unique_key, schedule, depends_on
    )
    SELECT
        lane, id, attempt, crashes, deliveries, priority, max_attempts, replay_count, run_at, started_at, $3, lease_token, settled_as,
        'expired', NULL, 'expired', worker_id, job_type, group_key, lease_seconds, retry, attempts, progress, checkpoint, tags,
        metadata, traceparent, tracestate, replayed_from, payload, timeout_seconds, unique_key, schedule, depends_on
    FROM deleted
),
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'dead'
    FROM deleted
    WHERE has_dependents
    ON CONFLICT (lane, id) DO UPDATE
    SET state = excluded.state
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready, dead)
    SELECT $1, -count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state = 'blocked'),
        -count(*) FILTER (WHERE state IN ('ready', 'pending')), count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'dead' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission
FROM deleted;

-- name: past_start_deadline
-- Reads a range at the start of the index jobs_start_deadline.
SELECT id
FROM jobs
WHERE expires_at <= $1 AND lease_expires_at IS NULL
ORDER BY expires_at
LIMIT $2;

-- name: request_cancel
-- running -> running (asked to stop).  Returns whether it had been asked before.
UPDATE jobs
SET cancel_requested_at = coalesce(cancel_requested_at, $3)
WHERE lane = $1 AND id = ANY($2::uuid[]) AND state = 'running'
RETURNING id, cancel_requested_at < $3 AS again;

-- name: run_now
-- row: MovedJobRow
-- scheduled -> ready | pending.
WITH old AS (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = $2
    FOR UPDATE
),
made_ready AS (
    UPDATE jobs
    SET state = CASE
            WHEN admission IS NOT NULL THEN 'ready'
            WHEN coalesce(group_key, '') = ANY($4::text[]) OR (group_key IS NOT NULL AND '*' = ANY($4::text[])) THEN 'pending'
            ELSE 'ready'
        END,
        state_reason = NULL,
        run_at = $3
    FROM old
    WHERE jobs.lane = $1 AND jobs.id = $2 AND old.state = 'scheduled'
    RETURNING jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready)
    SELECT $1, -1, 1
    FROM made_ready
)
SELECT id, state, job_type, group_key, run_at, has_dependents, admission
FROM made_ready;

-- name: due_jobs
-- Reads a range at the start of the index jobs_due, no future jobs. Limited, because very many may
-- be due.
SELECT id
FROM jobs
WHERE state = 'scheduled' AND run_at <= $1
ORDER BY run_at
LIMIT $2;

-- name: next_due
-- Reads the first entry of the index jobs_due.
SELECT min(run_at)
FROM jobs
WHERE state = 'scheduled';

-- name: schedule_due
-- row: MovedJobRow
-- scheduled -> ready | pending.
--
-- A retry that has kept its admission is ready. Other jobs of held groups wait for admission.
-- Several brokers may run this at the same time: each skips the rows that another has locked.
WITH picked AS MATERIALIZED (
    SELECT id, state, run_at
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
promoted AS (
    UPDATE jobs
    SET state = CASE
            WHEN admission IS NOT NULL THEN 'ready'
            WHEN coalesce(group_key, '') = ANY($4::text[]) OR (group_key IS NOT NULL AND '*' = ANY($4::text[])) THEN 'pending'
            ELSE 'ready'
        END,
        state_reason = NULL
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM picked WHERE state = 'scheduled' AND run_at <= $3))
    RETURNING id, state, job_type, group_key, run_at, has_dependents, admission
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready)
    SELECT $1, -count(*), count(*)
    FROM promoted
    HAVING count(*) > 0
)
SELECT id, state, job_type, group_key, run_at, has_dependents, admission
FROM promoted;

-- name: count_waiting
-- Sums the statistics: exact in its snapshot, and the same cost for ten jobs and for ten million.
SELECT coalesce(sum(scheduled + blocked + ready), 0)::bigint
FROM (
    SELECT scheduled, blocked, ready
    FROM stat_totals
    WHERE lane = ANY($1::int[])
    UNION ALL
    SELECT scheduled, blocked, ready
    FROM stat_deltas
    WHERE lane = ANY($1::int[])
) AS parts;

-- name: count_purgeable
SELECT count(*)
FROM jobs
WHERE lane >= $1 AND lane < $2 AND state = ANY($3::text[]);

-- name: purgeable_jobs
-- Scans all lanes of a queue in lock order: $1 and $2 are where the last batch ended. Jobs from $4
-- on were inserted after the purge began: without that bound the purge of a busy queue would never
-- end.
SELECT id
FROM jobs
WHERE (lane, id) > ($1, $2) AND lane < $3 AND id < $4 AND state = ANY($5::text[])
ORDER BY lane, id
LIMIT $6;

-- name: purge_waiting
-- scheduled | blocked | ready | pending -> (nothing).
--
-- A job that was claimed in the meantime does not match. A job that others depend on is recorded as
-- purged in finished_parents: otherwise its children would wait forever.
WITH locked AS (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND lease_expires_at IS NULL
    ORDER BY id
    FOR UPDATE
),
deleted AS (
    DELETE FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = ANY($3::text[])))
    RETURNING lane, id, state, has_dependents
),
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'purged'
    FROM deleted
    WHERE has_dependents
    ON CONFLICT DO NOTHING
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready)
    SELECT $1, -count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state = 'blocked'),
        -count(*) FILTER (WHERE state IN ('ready', 'pending'))
    FROM deleted
    HAVING count(*) > 0
)
SELECT id
FROM deleted;
