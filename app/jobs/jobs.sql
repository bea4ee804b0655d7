-- Jobs before they are leased: how they come in, wait, become due, change and are cancelled.
-- Order of locks: a row of keys, then jobs of one lane in the order of their ids, then the next lane.
-- A statement that has an id finds its row by the primary key: conditions that a partial index could answer (state = 'ready' or
-- 'scheduled', lease_expires_at IS NOT NULL) are kept out of its WHERE, or stale statistics tempt the planner (3.3 ms, not 0.07).

-- name: enqueue
-- (nothing) -> ready | scheduled.  The broker has minted the ids and knows what is due.
WITH added AS (
    INSERT INTO jobs (
        lane, id, state, run_at, priority, max_attempts, job_type, group_key, lease_seconds, retry, tags, metadata,
        traceparent, tracestate, replayed_from, payload
    )
    SELECT $1, new.*
    FROM unnest(
        $2::uuid[], $3::text[], $4::timestamptz[], $5::smallint[], $6::smallint[], $7::text[], $8::text[], $9::int[], $10::text[],
        $11::text[], $12::text[], $13::text[], $14::text[], $15::uuid[], $16::text[]
    ) AS new
    RETURNING state
)
INSERT INTO stat_deltas (lane, ready, scheduled, enqueued)
SELECT $1, count(*) FILTER (WHERE state = 'ready'), count(*) FILTER (WHERE state = 'scheduled'), count(*)
FROM added;

-- name: live_jobs
-- fills: JobRow
SELECT lane, id, job_type, payload, state, state_reason, priority, attempt, max_attempts, crashes, deliveries, run_at, started_at,
    NULL::timestamptz AS finished_at, worker_id, lease_expires_at, progress, checkpoint, NULL::text AS result, attempts, group_key,
    tags, metadata, replayed_from, replay_count, cancel_requested_at
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: finished_jobs
-- fills: JobRow
-- Probes the partitions that are still kept; what is past its time but not yet dropped is gone for readers.
SELECT lane, id, job_type, payload, state, state_reason, priority, attempt, max_attempts, crashes, deliveries, run_at, started_at,
    finished_at, worker_id, NULL::timestamptz AS lease_expires_at, progress, checkpoint, result, attempts, group_key,
    tags, metadata, replayed_from, replay_count, cancel_requested_at
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > now();

-- name: dead_jobs
-- fills: JobRow
SELECT lane, id, job_type, payload, 'dead' AS state, reason AS state_reason, priority, attempt, max_attempts, crashes, deliveries,
    run_at, started_at, dead_at AS finished_at, worker_id, NULL::timestamptz AS lease_expires_at, progress, checkpoint,
    NULL::text AS result, attempts, group_key, tags, metadata, replayed_from, replay_count, NULL::timestamptz AS cancel_requested_at
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: change
-- scheduled | blocked | ready -> scheduled | blocked | ready.  Only what is given changes; a running job's row does not match.
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
        state = CASE WHEN $4 IS NULL OR jobs.state = 'blocked' THEN jobs.state WHEN $4 > $9 THEN 'scheduled' ELSE 'ready' END,
        state_reason = CASE WHEN $4 IS NULL OR jobs.state = 'blocked' THEN state_reason END
    FROM old
    WHERE jobs.lane = $1 AND jobs.id = $2 AND jobs.id = old.id
    RETURNING jobs.state
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, scheduled)
    SELECT $1,
        (changed.state = 'ready')::int - (old.state = 'ready')::int,
        (changed.state = 'scheduled')::int - (old.state = 'scheduled')::int
    FROM old, changed
    WHERE changed.state <> old.state
)
SELECT state
FROM changed;

-- name: cancel_waiting
-- scheduled | blocked | ready -> cancelled.  A running job's row does not match: its worker is asked instead.
WITH locked AS (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND lease_expires_at IS NULL
    ORDER BY id
    FOR UPDATE
),
taken AS (
    DELETE FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked))
    RETURNING *
),
moved AS (
    INSERT INTO finished_jobs (
        lane, id, state, state_reason, finished_at, keep_until, archive, cancel_requested_at, attempt, crashes, deliveries, run_at,
        started_at, priority, max_attempts, replay_count, lease_token, settled_as, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload
    )
    SELECT
        lane, id, 'cancelled', 'cancelled_by_user', $3, $4, $5, $3, attempt, crashes, deliveries, run_at,
        started_at, priority, max_attempts, replay_count, lease_token, settled_as, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload
    FROM taken
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready, cancelled)
    SELECT $1, -count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state = 'blocked'),
        -count(*) FILTER (WHERE state = 'ready'), count(*)
    FROM taken
    HAVING count(*) > 0
)
SELECT id
FROM taken;

-- name: request_cancel
-- running -> running (asked to stop).  Answers whether it had been asked before.
UPDATE jobs
SET cancel_requested_at = coalesce(cancel_requested_at, $3)
WHERE lane = $1 AND id = ANY($2::uuid[]) AND state = 'running'
RETURNING id, cancel_requested_at < $3 AS again;

-- name: run_now
-- scheduled -> ready.
WITH old AS (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = $2
    FOR UPDATE
),
hurried AS (
    UPDATE jobs
    SET state = 'ready', state_reason = NULL, run_at = $3
    FROM old
    WHERE jobs.lane = $1 AND jobs.id = $2 AND old.state = 'scheduled'
    RETURNING jobs.id
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready)
    SELECT $1, -1, 1
    FROM hurried
)
SELECT id
FROM hurried;

-- name: due_jobs
-- A range at the start of jobs_due: future jobs are not read. Bounded, as there may be very many.
SELECT id
FROM jobs
WHERE state = 'scheduled' AND run_at <= $1
ORDER BY run_at
LIMIT $2;

-- name: next_due
-- The first entry of jobs_due.
SELECT min(run_at)
FROM jobs
WHERE state = 'scheduled';

-- name: promote
-- scheduled -> ready.  Several brokers may do this at once: each takes what the others have not.
WITH picked AS MATERIALIZED (
    SELECT id, state, run_at
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
promoted AS (
    UPDATE jobs
    SET state = 'ready', state_reason = NULL
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM picked WHERE state = 'scheduled' AND run_at <= $3))
    RETURNING job_type
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready)
    SELECT $1, -count(*), count(*)
    FROM promoted
    HAVING count(*) > 0
)
SELECT job_type
FROM promoted;

-- name: take_key
-- A key is taken by inserting it, or by taking over one whose time has passed. Rivals wait here for each other's commit.
INSERT INTO keys (lane, digest, fingerprint, answer, expires_at)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (lane, digest) DO UPDATE
SET fingerprint = excluded.fingerprint, answer = excluded.answer, expires_at = excluded.expires_at
WHERE keys.expires_at <= $6
RETURNING digest;

-- name: read_key
SELECT fingerprint, answer
FROM keys
WHERE lane = $1 AND digest = $2;
