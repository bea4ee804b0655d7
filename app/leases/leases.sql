-- Jobs held by workers: claim, heartbeat, and the four ways out of a lease (complete, requeue,
-- move_to_dead_letters, finish_cancelled).
--
-- The fence is (id, lease_token). Every delivery replaces the token, so a stale holder matches no
-- row. settled_as says that this token has been used. Expiry clears lease_expires_at and keeps the
-- token, so a late settlement still finds its job, and a late heartbeat does not.
--
-- Lock order, written here for all packages:
--
--   1. deduplication keys (deduplication_keys), by lane, then digest
--   2. lane locks (lane_locks), by lane
--   3. jobs of one lane, by id; then jobs of the next lane
--
-- Arrays are sent sorted by id.
--
-- Rows are always found by (lane, id = ANY). Joined by id alone, the planner may read the whole
-- lane instead, if its statistics are from a time when the lane was short (requeue of 1000 jobs:
-- 750 ms, this way 27).
--
-- Leased rows are found by state = 'running' and not by lease_expires_at IS NOT NULL: no index
-- answers the former, so the planner stays on the primary key whatever the statistics say.

-- name: claim
-- row: ClaimedRow
-- ready -> running.
--
-- Claims up to $2 ready jobs of one lane: highest priority first, oldest first within a priority.
--
-- Pollers can share this statement (db/batcher.py). $3 and $6 are the worker and the lease length
-- of each poller, $20 is the number of the first job of each poller but the first. The first
-- poller gets the first jobs. Jobs that do not fit into a poller's response ($8 bytes) stay ready.
--
--  * Claiming costs the attempt, failing does not: a worker that crashes silently must not retry
--    forever.
--  * The lease token is a hash of the claim's secret and the job id. It is as random as the secret,
--    and the broker need not send one token per row.
--  * Times that depend on a column go through to_timestamp(), which is immutable: Citus rejects
--    `timestamptz + interval` there.
--  * The UPDATE finds its rows by an id array. Joined to the picked rows alone, a generic plan
--    becomes a scan of the whole table.
--  * In groups that need admission ($13: held groups, see jobs.sql) only admitted jobs are claimed.
--    Others may be here for a moment, inserted by a process that did not know the limit yet.
--  * $14 marks leases that count against max_running, $15 is the caller whose quota of leases they
--    count against.
--  * Scan ranges ($16 to $19) are read one after the other, only until there are enough jobs; see
--    leases/low_water_marks.py. Their bounds are columns, so no plan knows them: a custom plan
--    expects as few rows as the generic plan, and Postgres keeps the latter. With parameters,
--    claims of one job were planned anew each time.
--  * Durations are returned in seconds: the driver takes 1 µs for a timestamp, 0.05 for a number.
--    After a crash the time since run_at is not time waited.
WITH picked AS MATERIALIZED (
    SELECT candidate.id, candidate.size, row_number() OVER () AS n
    FROM unnest($16::smallint[], $17::smallint[], $18::uuid[], $19::uuid[]) AS scan_range (highest, lowest, after, upto)
    CROSS JOIN LATERAL (
        SELECT id, $11 + octet_length(payload) + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
            + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0) AS size
        FROM jobs
        WHERE lane = $1 AND state = 'ready' AND priority <= scan_range.highest AND priority >= scan_range.lowest
            AND id > scan_range.after AND id <= scan_range.upto
            AND ($9::text[] IS NULL OR job_type = ANY($9::text[])) AND (expires_at IS NULL OR expires_at > $4)
            AND ($13::text[] IS NULL OR admission IS NOT NULL
                OR NOT (coalesce(group_key, '') = ANY($13::text[]) OR (group_key IS NOT NULL AND '*' = ANY($13::text[]))))
        ORDER BY priority DESC, id
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT $2
),
shared AS (
    SELECT id, size, n, width_bucket(n, $20::bigint[]) + 1 AS share
    FROM picked
),
measured AS (
    SELECT id, share, size, sum(size) OVER (PARTITION BY share ORDER BY n ROWS UNBOUNDED PRECEDING) AS total
    FROM shared
),
claimed AS (
    UPDATE jobs
    SET state = 'running',
        state_reason = NULL,
        settled_as = NULL,
        unreported_since = NULL,
        attempt = attempt + 1,
        deliveries = deliveries + 1,
        worker_id = ($3::text[])[share],
        started_at = $4,
        lease_token = md5($5 || jobs.id::text)::uuid,
        lease_expires_at = to_timestamp($10::float8 + least(coalesce(($6::int[])[share], lease_seconds, $7), timeout_seconds)),
        deadline_at = to_timestamp($10::float8 + timeout_seconds),
        uses_slot = $14,
        quota_owner = $15
    FROM measured
    WHERE lane = $1 AND jobs.id = ANY(ARRAY(SELECT id FROM measured WHERE total <= $8 OR ($12 AND total = size))) AND jobs.id = measured.id
    RETURNING jobs.id, job_type, payload, attempt, max_attempts, deliveries, lease_token, lease_expires_at, priority, crashes, run_at,
        checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on, admission, share
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, running)
    SELECT $1, -count(*), count(*)
    FROM claimed
    HAVING count(*) > 0
)
SELECT $1 AS lane, id, job_type, payload, attempt, max_attempts, deliveries, lease_token, $10 AS began,
    date_part('epoch', lease_expires_at - $4) AS lasts,
    CASE WHEN crashes = 0 THEN date_part('epoch', $4 - greatest(run_at, 'epoch')) END AS waited, priority,
    checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on, admission, share
FROM claimed;

-- name: claim_admitted
-- row: ClaimedRow
-- as: claim
-- with: state = 'ready' => state = 'ready' AND admission IS NOT NULL
-- with: ORDER BY priority DESC, id => ORDER BY priority DESC, admission, id
-- ready -> running, of a fair queue: in the order of admission.

-- name: first_ready
-- The first ready job of each of these priorities. Reads past all dead index entries, so that
-- claims need not.
SELECT input.priority, candidate.id
FROM unnest($2::smallint[]) AS input (priority)
CROSS JOIN LATERAL (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND state = 'ready' AND priority = input.priority
    ORDER BY id
    LIMIT 1
) AS candidate;

-- name: count_leases_of_key
-- Counts the leases that use up the quota of a caller.
SELECT count(*)
FROM jobs
WHERE quota_owner = $1 AND lease_expires_at IS NOT NULL;

-- name: leases_with_secret
-- row: ClaimedRow
-- For a repeated claim: the leases of its first call that are still live.
SELECT lane, id, job_type, payload, attempt, max_attempts, deliveries, lease_token, date_part('epoch', started_at - to_timestamp(0)) AS began,
    date_part('epoch', lease_expires_at - started_at) AS lasts, NULL::float8 AS waited, priority,
    checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on, admission, 1 AS share
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND lease_token = md5($3 || id::text)::uuid AND state = 'running';

-- name: heartbeat
-- row: HeartbeatRow
-- running -> running (later).
--
-- The token is the fence: a stale holder matches no row, nor does a holder whose lease has expired.
-- Only an explicit length may shorten the lease, because its claim may have requested a longer one
-- than the default. No lease outlasts the deadline of the run; from then on the heartbeat's
-- response has the action cancel.
UPDATE jobs
SET lease_expires_at = least(
        greatest(
            to_timestamp($4::float8 + coalesce(input.lease_seconds, jobs.lease_seconds, $5)),
            CASE WHEN input.lease_seconds IS NULL THEN jobs.lease_expires_at END
        ),
        jobs.deadline_at
    ),
    unreported_since = NULL,
    progress = coalesce(input.progress, jobs.progress),
    checkpoint = coalesce(input.checkpoint, jobs.checkpoint)
FROM unnest($2::uuid[], $3::uuid[], $6::int[], $7::text[], $8::text[]) AS input (id, token, lease_seconds, progress, checkpoint)
WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token AND jobs.state = 'running'
RETURNING jobs.id, jobs.lease_token, jobs.lease_expires_at, 
    jobs.cancel_requested_at IS NOT NULL OR coalesce(jobs.deadline_at <= to_timestamp($4::float8), false) AS cancel;

-- name: complete
-- row: SettledRow
-- running -> completed.
--
-- Also ready -> completed: a late settlement is accepted if the job has not been delivered again,
-- so that finished work is not thrown away. And scheduled -> completed, if the job has been
-- postponed since.
--
-- A row of `deleted` is copied twice and read four times. So it has only the columns that are
-- needed, and the columns that are only for finished_jobs come last: 14.4 µs of CPU a job in batches of
-- 100, with jobs.* it was 15.9.
WITH deleted AS (
    DELETE FROM jobs
    USING unnest($2::uuid[], $3::uuid[], $4::text[]) AS input (id, token, result)
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token AND jobs.settled_as IS NULL
    RETURNING jobs.lane, jobs.id, state, has_dependents, attempt, run_at, started_at, job_type, group_key, admission,
        cancel_requested_at, crashes, deliveries, priority, max_attempts, replay_count, lease_token, worker_id, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on, input.result
),
moved AS (
    INSERT INTO finished_jobs (
        lane, id, state, finished_at, keep_until, archive, settled_as, result, cancel_requested_at, attempt, crashes, deliveries, run_at,
        started_at, priority, max_attempts, replay_count, lease_token, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on
    )
    SELECT
        lane, id, 'completed', $5::timestamptz, $6, $7, 'complete', result, cancel_requested_at, attempt, crashes, deliveries, run_at,
        started_at, priority, max_attempts, replay_count, lease_token, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on
    FROM deleted
),
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'completed'
    FROM deleted
    WHERE has_dependents
    ON CONFLICT (lane, id) DO UPDATE
    SET state = excluded.state
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready, running, completed)
    SELECT $1, -count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state IN ('ready', 'pending')),
        -count(*) FILTER (WHERE state = 'running'), count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'completed' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission, attempt,
    date_part('epoch', $5 - started_at) AS ran
FROM deleted;

-- name: get_leases
-- row: LeaseRow
-- The input of `retry_decision.decide`. Everything but state, lease_expires_at, cancel_requested_at
-- and unreported_since is fixed as long as the token is.
SELECT jobs.id, jobs.lease_token, jobs.state, jobs.attempt, jobs.max_attempts, jobs.crashes, jobs.deliveries, jobs.run_at, jobs.started_at,
    jobs.lease_expires_at, jobs.deadline_at, jobs.cancel_requested_at, jobs.unreported_since, jobs.worker_id, jobs.retry
FROM jobs
JOIN unnest($2::uuid[], $3::uuid[]) AS input (id, token) ON jobs.id = input.id AND jobs.lease_token = input.token
WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.settled_as IS NULL;

-- name: requeue
-- row: SettledRow
-- running -> ready | pending | scheduled.
--
-- Every way out of a lease after which the job runs again. Workers: fail, snooze, release. Broker:
-- return (undelivered), reconcile (no longer listed by its worker), expire. A late settlement comes
-- from ready or scheduled, as in `complete`.
--
--  * Matches only jobs that still are as they were at the decision: the same state, no cancellation
--    since, and for expire and reconcile no heartbeat since.
--  * A job that is ready again keeps its admission, unless its group cools down ($18). A postponed
--    job keeps it only where order is strict ($16).
--  * Admission 0 belongs to a lease beyond the limit (`revoke_surplus`) and is not kept.
--  * $17: held groups, see jobs.sql.
WITH locked AS (
    SELECT jobs.id, input.next_state, input.reason, input.settled_as, input.run_at, input.attempt, input.crashes, input.checkpoint, input.entry,
        input.was, jobs.admission,
        coalesce(jobs.group_key = ANY($18::text[]), false) OR (
            coalesce(jobs.admission, 0) = 0
            AND coalesce(coalesce(jobs.group_key, '') = ANY($17::text[]) OR (jobs.group_key IS NOT NULL AND '*' = ANY($17::text[])), false)
        ) AS waits
    FROM jobs
    JOIN unnest(
        $2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::text[], $9::text[], $10::timestamptz[], $11::smallint[],
        $12::smallint[], $13::text[], $14::text[]
    ) AS input (id, token, was, lease, unreported_since, next_state, reason, settled_as, run_at, attempt, crashes, checkpoint, entry)
        ON jobs.id = input.id AND jobs.lease_token = input.token
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.settled_as IS NULL AND jobs.state = input.was
        AND jobs.cancel_requested_at IS NULL AND (input.lease IS NULL OR jobs.lease_expires_at = input.lease)
        AND (input.unreported_since IS NULL OR jobs.unreported_since = input.unreported_since)
    ORDER BY jobs.id
    FOR UPDATE OF jobs
),
requeued AS (
    UPDATE jobs
    SET state = CASE WHEN locked.next_state = 'ready' AND locked.waits THEN 'pending' ELSE locked.next_state END,
        admission = CASE WHEN (locked.next_state = 'ready' AND NOT locked.waits) OR (locked.next_state = 'scheduled' AND $16) THEN nullif(jobs.admission, 0) END,
        uses_slot = NULL,
        deadline_at = NULL,
        expires_at = CASE WHEN locked.settled_as IS NULL AND locked.entry IS NULL THEN jobs.expires_at END,
        state_reason = locked.reason,
        settled_as = locked.settled_as,
        run_at = locked.run_at,
        attempt = locked.attempt,
        crashes = locked.crashes,
        lease_expires_at = NULL,
        unreported_since = NULL,
        checkpoint = coalesce(locked.checkpoint, jobs.checkpoint),
        attempts = CASE
            WHEN locked.entry IS NULL THEN jobs.attempts
            ELSE (coalesce(jobs.attempts, '{}') || locked.entry)[greatest(1, coalesce(cardinality(jobs.attempts), 0) + 2 - $15):]
        END
    FROM locked
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.id, jobs.state, jobs.attempt, jobs.run_at, jobs.job_type, jobs.group_key, locked.was, locked.entry, locked.admission
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, running, scheduled, failed)
    SELECT $1,
        count(*) FILTER (WHERE state IN ('ready', 'pending')) - count(*) FILTER (WHERE was IN ('ready', 'pending')),
        -count(*) FILTER (WHERE was = 'running'),
        count(*) FILTER (WHERE state = 'scheduled') - count(*) FILTER (WHERE was = 'scheduled'),
        count(entry)
    FROM requeued
    HAVING count(*) > 0
)
SELECT id, state, job_type, group_key, run_at, false AS has_dependents, admission, attempt, NULL::float8 AS ran
FROM requeued;

-- name: move_to_dead_letters
-- row: SettledRow
-- running -> dead.
--
-- Moves the job, its reason and its attempt records to dead_letters. Matches only jobs that still
-- are as they were at the decision, as in `requeue`.
WITH locked AS (
    SELECT jobs.id, input.reason, input.settled_as, input.attempt, input.crashes, input.checkpoint, input.entry, input.error_type, input.fingerprint,
        input.was
    FROM jobs
    JOIN unnest(
        $2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::text[], $9::smallint[], $10::smallint[], $11::text[],
        $12::text[], $13::text[], $14::text[]
    ) AS input (id, token, was, lease, unreported_since, reason, settled_as, attempt, crashes, checkpoint, entry, error_type, fingerprint)
        ON jobs.id = input.id AND jobs.lease_token = input.token
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.settled_as IS NULL AND jobs.state = input.was
        AND jobs.cancel_requested_at IS NULL AND (input.lease IS NULL OR jobs.lease_expires_at = input.lease)
        AND (input.unreported_since IS NULL OR jobs.unreported_since = input.unreported_since)
    ORDER BY jobs.id
    FOR UPDATE OF jobs
),
deleted AS (
    DELETE FROM jobs
    USING locked
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.*, locked.was, locked.reason, locked.settled_as AS outcome, locked.attempt AS last_attempt, locked.crashes AS last_crashes,
        locked.checkpoint AS last_checkpoint, locked.entry, locked.error_type, locked.fingerprint
),
dead_lettered AS (
    INSERT INTO dead_letters (
        lane, id, attempt, crashes, deliveries, priority, max_attempts, replay_count, run_at, started_at, dead_at, lease_token, settled_as,
        reason, error_type, fingerprint, worker_id, job_type, group_key, lease_seconds, retry, attempts, progress, checkpoint, tags,
        metadata, traceparent, tracestate, replayed_from, payload, timeout_seconds, unique_key, schedule, depends_on
    )
    SELECT
        lane, id, last_attempt, last_crashes, deliveries, priority, max_attempts, replay_count, run_at, started_at, $16, lease_token, outcome,
        reason, error_type, fingerprint, worker_id, job_type, group_key, lease_seconds, retry,
        CASE
            WHEN entry IS NULL THEN attempts
            ELSE (coalesce(attempts, '{}') || entry)[greatest(1, coalesce(cardinality(attempts), 0) + 2 - $15):]
        END,
        progress, coalesce(last_checkpoint, checkpoint), tags, metadata, traceparent, tracestate, replayed_from, payload, timeout_seconds,
        unique_key, schedule, depends_on
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
    INSERT INTO stat_deltas (lane, scheduled, ready, running, dead, failed)
    SELECT $1, -count(*) FILTER (WHERE was = 'scheduled'), -count(*) FILTER (WHERE was IN ('ready', 'pending')),
        -count(*) FILTER (WHERE was = 'running'), count(*), count(entry)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'dead' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission, last_attempt AS attempt,
    NULL::float8 AS ran
FROM deleted;

-- name: finish_cancelled
-- row: SettledRow
-- running -> cancelled.
--
-- A cancellation was requested, and the lease has ended with any outcome but completion.
WITH locked AS (
    SELECT jobs.id, input.settled_as, input.crashes, input.checkpoint, input.entry, input.was
    FROM jobs
    JOIN unnest($2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::smallint[], $9::text[], $10::text[])
        AS input (id, token, was, lease, unreported_since, settled_as, crashes, checkpoint, entry)
        ON jobs.id = input.id AND jobs.lease_token = input.token
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.settled_as IS NULL AND jobs.state = input.was
        AND (input.lease IS NULL OR jobs.lease_expires_at = input.lease)
        AND (input.unreported_since IS NULL OR jobs.unreported_since = input.unreported_since)
    ORDER BY jobs.id
    FOR UPDATE OF jobs
),
deleted AS (
    DELETE FROM jobs
    USING locked
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.*, locked.was, locked.settled_as AS outcome, locked.crashes AS last_crashes, locked.checkpoint AS last_checkpoint, locked.entry
),
finished AS (
    INSERT INTO finished_jobs (
        lane, id, state, state_reason, finished_at, keep_until, archive, settled_as, cancel_requested_at, attempt, crashes, deliveries,
        run_at, started_at, priority, max_attempts, replay_count, lease_token, worker_id, job_type, group_key, attempts, progress,
        checkpoint, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on
    )
    SELECT
        lane, id, 'cancelled', 'cancelled_by_user', $12, $13, $14, outcome, cancel_requested_at, attempt, last_crashes, deliveries,
        run_at, started_at, priority, max_attempts, replay_count, lease_token, worker_id, job_type, group_key,
        (coalesce(attempts, '{}') || entry)[greatest(1, coalesce(cardinality(attempts), 0) + 2 - $11):], progress,
        coalesce(last_checkpoint, checkpoint), tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule,
        depends_on
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
    INSERT INTO stat_deltas (lane, scheduled, ready, running, cancelled)
    SELECT $1, -count(*) FILTER (WHERE was = 'scheduled'), -count(*) FILTER (WHERE was IN ('ready', 'pending')),
        -count(*) FILTER (WHERE was = 'running'), count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'cancelled' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission, attempt,
    NULL::float8 AS ran
FROM deleted;

-- name: settlement_records
-- row: SettlementRecord
-- For settlements that matched no lease: the state of their jobs, and by which token and outcome
-- they were settled.
SELECT id, state, attempt, run_at, lease_token, settled_as
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[])
UNION ALL
SELECT id, state, attempt, NULL, lease_token, settled_as
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3
UNION ALL
SELECT id, 'dead', attempt, NULL, lease_token, settled_as
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: wait_for_replication
-- Writes only a message to the write-ahead log. Its commit waits for the standby like any other.
-- A settlement that is found may have been committed on the primary alone, because its own wait was
-- cancelled. If it were reported as settled without this wait, a failover would lose an
-- acknowledged settlement.
SELECT pg_logical_emit_message(true, 'longshore', 'settled');

-- name: expired_leases
-- Reads a range at the start of jobs_leased, from where the last scan ended. Bounded, because a
-- stalled broker may find very many.
SELECT lane, id, lease_token
FROM jobs
WHERE lease_expires_at > $1 AND lease_expires_at <= $2
ORDER BY lease_expires_at
LIMIT $3;

-- name: leases_of_worker
-- For reconciliation: the leases of a worker that were claimed at least two seconds ago. Reads
-- jobs_leased and fetches only the rows of this worker.
SELECT lane, id, lease_token, unreported_since
FROM jobs
WHERE lease_expires_at IS NOT NULL AND worker_id = $1 AND started_at <= $2;

-- name: mark_unreported
-- running -> running (not listed).
--
-- The first of two heartbeats in a row that do not list the lease.
UPDATE jobs
SET unreported_since = $4
FROM unnest($2::uuid[], $3::uuid[]) AS input (id, token)
WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token AND jobs.state = 'running';

-- name: ready_lanes
-- For the ready poller: which of these lanes have a ready job. One look-up in jobs_ready for each.
SELECT input.lane
FROM unnest($1::int[]) AS input (lane)
WHERE EXISTS (SELECT FROM jobs WHERE jobs.lane = input.lane AND jobs.state = 'ready');

-- name: live_tokens
-- Every token that could still settle a job, of running jobs and of jobs whose lease has expired.
-- Read in batches along the primary key.
SELECT lane, id, lease_token
FROM jobs
WHERE (lane, id) > ($1::int, $2::uuid) AND lease_token IS NOT NULL AND settled_as IS NULL
ORDER BY lane, id
LIMIT $3;
