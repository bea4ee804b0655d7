-- Jobs held by workers: heartbeat, and the four ways out of a lease (complete, requeue,
-- move_to_dead_letters, finish_cancelled). The way into it is in claims.sql.
--
-- The fence is (id, lease_token). Every delivery replaces the token, so a stale holder matches no
-- row. settled_as says that the token has been used. An expiry ends the run, clears
-- lease_expires_at and keeps the token. So a late settlement still finds its job, and a late
-- heartbeat does not.
--
-- Lock order, written here for all packages (the row of a schedule is locked before all of these):
--
--   1. deduplication keys (deduplication_keys), by lane, then digest
--   2. lane_locks, by number: caller locks and queue locks (negative), then lane locks
--   3. jobs of one lane, by id; then jobs of the next lane
--
-- Arrays are sent sorted by id. Rows are always found by (lane, id = ANY). If they were joined by
-- id alone, the planner could read the whole lane instead, because its statistics may be from a
-- time when the lane was short (requeueing 1000 jobs took 750 ms that way, and takes 27 this way).
--
-- Leased rows are found by state = 'running' and not by lease_expires_at IS NOT NULL: no index
-- answers the former, so the planner stays on the primary key whatever the statistics say.
-- Statements that read all leases (leases_of_worker, count_leases_of_caller) use the index on
-- purpose.

-- fragment: lock_if_unchanged
-- The rest of a WHERE: matches only leases that are unchanged since the decision. The state is the
-- same, and for expire, timeout and reconcile no heartbeat came in between.
jobs.lane = :lane AND jobs.id = ANY(:id::uuid[]) AND jobs.settled_as IS NULL AND jobs.state = input.previous_state
    AND (input.expected_expiry IS NULL OR jobs.lease_expires_at = input.expected_expiry)
    AND (input.unreported_since IS NULL OR jobs.unreported_since = input.unreported_since)
ORDER BY jobs.id
FOR UPDATE OF jobs

-- fragment: attempts_and_record
-- The attempt records with the new one at the end. A late failure replaces the record of its own
-- run (replaces_record). The oldest record is dropped if there are too many.
(attempts[1:coalesce(cardinality(attempts), 0) - replaces_record::int] || attempt_record)[
    greatest(1, coalesce(cardinality(attempts), 0) - replaces_record::int + 2 - :max_attempt_records):
]

-- fragment: deducted_counts
-- Subtracts the `deleted` jobs from the counters scheduled, ready and running.
-count(*) FILTER (WHERE previous_state = 'scheduled'), -count(*) FILTER (WHERE previous_state IN {{shown_as_ready}}),
-count(*) FILTER (WHERE previous_state = 'running')

-- fragment: failed_count
-- What is added to the counter `failed`. A run whose record is replaced has been counted already.
count(attempt_record) FILTER (WHERE NOT replaces_record)

-- name: heartbeat
-- row: HeartbeatRow
-- running -> running (lease extended).
--
-- The token is the fence: a stale holder matches no row, nor does a holder whose lease has expired.
-- A heartbeat with lease_seconds may shorten the lease. One without never does, because the claim
-- may have requested a longer lease than the default. No lease outlasts the deadline of the run;
-- from then on the heartbeat's response has the action cancel.
UPDATE jobs
SET lease_expires_at = least(
        greatest(
            to_timestamp(
                :now_epoch::float8 + coalesce(input.lease_seconds, jobs.lease_seconds, :default_lease_seconds)
            ),
            CASE WHEN input.lease_seconds IS NULL THEN jobs.lease_expires_at END
        ),
        jobs.deadline_at
    ),
    unreported_since = NULL,
    progress = coalesce(input.progress, jobs.progress),
    checkpoint = coalesce(input.checkpoint, jobs.checkpoint)
FROM unnest(:id::uuid[], :token::uuid[], :lease_seconds::int[], :progress::text[], :checkpoint::text[])
    AS input (id, token, lease_seconds, progress, checkpoint)
WHERE jobs.lane = :lane AND jobs.id = ANY(:id::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token
    AND jobs.state = 'running'
RETURNING jobs.id, jobs.lease_token, jobs.lease_expires_at,
    jobs.cancel_requested_at IS NOT NULL
        OR coalesce(jobs.deadline_at <= to_timestamp(:now_epoch::float8), false) AS cancel;

-- name: complete
-- row: SettledRow
-- running -> completed.
--
-- Also ready, pending or (if postponed) scheduled -> completed: a late settlement is accepted if
-- the job has not been delivered again, so that finished work is not thrown away.
--
-- A row of `deleted` is copied twice and read four times. So it has only the columns that are
-- needed, and the columns that are only for finished_jobs come last: 14.4 µs of CPU a job in
-- batches of 100, with jobs.* it was 15.9.
WITH deleted AS (
    DELETE FROM jobs
    USING unnest(:ids::uuid[], :tokens::uuid[], :results::text[]) AS input (id, token, result)
    WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.id = input.id
        AND jobs.lease_token = input.token AND jobs.settled_as IS NULL
    RETURNING jobs.lane, jobs.id, state AS previous_state, has_dependents, attempt, run_at, started_at, job_type,
        group_key, admission, cancel_requested_at, crashes, deliveries, priority, max_attempts, replay_count,
        lease_token, worker_id, attempts, progress, checkpoint, tags, metadata, traceparent, tracestate,
        replayed_from, payload, unique_key, schedule, depends_on, input.result
),
moved AS (
    INSERT INTO finished_jobs ({{finished_columns}}, result)
    SELECT {{copied_columns}}, attempt, crashes, attempts, checkpoint, cancel_requested_at, 'complete',
        :now::timestamptz, :keep_until, :archive, 'completed', result
    FROM deleted
),
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'completed'
    {{from_deleted_parents}}
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready, running, completed)
    SELECT :lane, {{deducted_counts}}, count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'completed' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission, attempt,
    date_part('epoch', :now - started_at) AS run_seconds
FROM deleted;

-- name: get_leases
-- row: LeaseRow
-- The input of `retry_decision.decide`. While token and state are unchanged, only lease_expires_at,
-- cancel_requested_at and unreported_since of a lease can change. A state change is caught by
-- `jobs.state = input.previous_state`. PATCH can change a waiting job, but this statement reads a
-- waiting job only for a late settlement. The last attempt record of that job says whether an
-- expiry or a timeout has counted its run.
SELECT jobs.id, jobs.lease_token, jobs.state, jobs.attempt, jobs.max_attempts, jobs.crashes, jobs.deliveries,
    jobs.run_at, jobs.started_at, jobs.lease_expires_at, jobs.deadline_at, jobs.cancel_requested_at,
    jobs.unreported_since, jobs.worker_id, jobs.retry,
    CASE WHEN jobs.state <> 'running' THEN jobs.attempts[cardinality(jobs.attempts)] END AS last_attempt_record
FROM jobs
JOIN unnest(:ids::uuid[], :tokens::uuid[]) AS input (id, token) ON jobs.id = input.id AND jobs.lease_token = input.token
WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.settled_as IS NULL;

-- name: requeue
-- row: SettledRow
-- running -> ready | pending | scheduled.
--
-- Every way out of a lease after which the job runs again. Workers: fail, snooze, release. Broker:
-- return (undelivered), reconcile (no longer listed by its worker), expire, timeout. A late
-- settlement comes from ready, pending or scheduled, as in `complete`.
--
--  * Skips a job whose cancellation was requested after the decision; the lease ender then decides
--    again.
--  * A job that is ready again keeps its admission, unless its group cools down
--    (:cooling_groups). A postponed job keeps it only where order is strict (:strict).
--  * Admission 0 is not kept; see concurrency.sql.
WITH locked AS (
    SELECT jobs.id, input.next_state, input.reason, input.settled_as, input.run_at, input.attempt, input.crashes,
        input.checkpoint, input.attempt_record, input.replaces_record, input.previous_state, jobs.admission,
        coalesce(jobs.group_key = ANY(:cooling_groups::text[]), false)
            OR (coalesce(jobs.admission, 0) = 0 AND coalesce({{is_held}}, false)) AS needs_admission
    FROM jobs
    JOIN unnest(
        :id::uuid[], :token::uuid[], :previous_state::text[], :expected_expiry::timestamptz[],
        :unreported_since::timestamptz[], :next_state::text[], :reason::text[], :settled_as::text[],
        :run_at::timestamptz[], :attempt::smallint[], :crashes::smallint[], :checkpoint::text[],
        :attempt_record::text[], :replaces_record::boolean[]
    ) AS input (
        id, token, previous_state, expected_expiry, unreported_since, next_state, reason, settled_as, run_at, attempt,
        crashes, checkpoint, attempt_record, replaces_record
    ) ON jobs.id = input.id AND jobs.lease_token = input.token
    WHERE jobs.cancel_requested_at IS NULL AND {{lock_if_unchanged}}
),
requeued AS (
    UPDATE jobs
    SET state = CASE
            WHEN locked.next_state = 'ready' AND locked.needs_admission THEN 'pending'
            ELSE locked.next_state
        END,
        admission = CASE
            WHEN (locked.next_state = 'ready' AND NOT locked.needs_admission)
                OR (locked.next_state = 'scheduled' AND :strict)
            THEN nullif(jobs.admission, 0)
        END,
        uses_slot = NULL,
        deadline_at = NULL,
        -- The start deadline is kept only if no worker has started the job (return, reconcile).
        expires_at = CASE WHEN locked.settled_as IS NULL AND locked.attempt_record IS NULL THEN jobs.expires_at END,
        state_reason = locked.reason,
        settled_as = locked.settled_as,
        run_at = locked.run_at,
        attempt = locked.attempt,
        crashes = locked.crashes,
        lease_expires_at = NULL,
        unreported_since = NULL,
        checkpoint = coalesce(locked.checkpoint, jobs.checkpoint),
        attempts = CASE WHEN attempt_record IS NULL THEN attempts ELSE {{attempts_and_record}} END
    FROM locked
    WHERE jobs.lane = :lane AND jobs.id = ANY(:id::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.id, jobs.state, jobs.attempt, jobs.run_at, jobs.job_type, jobs.group_key, locked.previous_state,
        locked.attempt_record, locked.replaces_record, locked.admission
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, running, scheduled, failed)
    SELECT :lane,
        count(*) FILTER (WHERE state IN {{shown_as_ready}})
            - count(*) FILTER (WHERE previous_state IN {{shown_as_ready}}),
        -count(*) FILTER (WHERE previous_state = 'running'),
        count(*) FILTER (WHERE state = 'scheduled') - count(*) FILTER (WHERE previous_state = 'scheduled'),
        {{failed_count}}
    FROM requeued
    HAVING count(*) > 0
)
SELECT id, state, job_type, group_key, run_at, false AS has_dependents, admission, attempt, NULL::float8 AS run_seconds
FROM requeued;

-- name: move_to_dead_letters
-- row: SettledRow
-- running -> dead.
--
-- Moves the job, its reason and its attempt records to dead_letters. Skips a job whose cancellation
-- was requested after the decision; the lease ender then decides again.
WITH locked AS (
    SELECT jobs.id, input.reason, input.settled_as, input.attempt, input.crashes, input.checkpoint,
        input.attempt_record, input.replaces_record, input.error_type, input.fingerprint, input.previous_state
    FROM jobs
    JOIN unnest(
        :id::uuid[], :token::uuid[], :previous_state::text[], :expected_expiry::timestamptz[],
        :unreported_since::timestamptz[], :reason::text[], :settled_as::text[], :attempt::smallint[],
        :crashes::smallint[], :checkpoint::text[], :attempt_record::text[], :replaces_record::boolean[],
        :error_type::text[], :fingerprint::text[]
    ) AS input (
        id, token, previous_state, expected_expiry, unreported_since, reason, settled_as, attempt, crashes, checkpoint,
        attempt_record, replaces_record, error_type, fingerprint
    ) ON jobs.id = input.id AND jobs.lease_token = input.token
    WHERE jobs.cancel_requested_at IS NULL AND {{lock_if_unchanged}}
),
deleted AS (
    DELETE FROM jobs
    USING locked
    WHERE jobs.lane = :lane AND jobs.id = ANY(:id::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.*, locked.previous_state, locked.reason, locked.settled_as AS outcome,
        locked.attempt AS last_attempt, locked.crashes AS last_crashes, locked.checkpoint AS last_checkpoint,
        locked.attempt_record, locked.replaces_record, locked.error_type, locked.fingerprint
),
dead_lettered AS (
    INSERT INTO dead_letters ({{dead_letter_columns}}, error_type)
    SELECT {{copied_columns}}, lease_seconds, retry, timeout_seconds, last_attempt, last_crashes,
        CASE WHEN attempt_record IS NULL THEN attempts ELSE {{attempts_and_record}} END,
        coalesce(last_checkpoint, checkpoint), outcome, :now, reason, fingerprint, error_type
    FROM deleted
),
{{recorded_dead_parents}},
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready, running, dead, failed)
    SELECT :lane, {{deducted_counts}}, count(*), {{failed_count}}
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'dead' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission,
    last_attempt AS attempt, NULL::float8 AS run_seconds
FROM deleted;

-- name: finish_cancelled
-- row: SettledRow
-- running -> cancelled.
--
-- A cancellation was requested, and the lease has ended with any outcome but completion. Every such
-- end of a run leaves an attempt record, so `attempt_record` is never NULL.
WITH locked AS (
    SELECT jobs.id, input.settled_as, input.crashes, input.checkpoint, input.attempt_record, input.replaces_record,
        input.previous_state
    FROM jobs
    JOIN unnest(
        :id::uuid[], :token::uuid[], :previous_state::text[], :expected_expiry::timestamptz[],
        :unreported_since::timestamptz[], :settled_as::text[], :crashes::smallint[], :checkpoint::text[],
        :attempt_record::text[], :replaces_record::boolean[]
    ) AS input (
        id, token, previous_state, expected_expiry, unreported_since, settled_as, crashes, checkpoint, attempt_record,
        replaces_record
    ) ON jobs.id = input.id AND jobs.lease_token = input.token
    WHERE {{lock_if_unchanged}}
),
deleted AS (
    DELETE FROM jobs
    USING locked
    WHERE jobs.lane = :lane AND jobs.id = ANY(:id::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.*, locked.previous_state, locked.settled_as AS outcome, locked.crashes AS last_crashes,
        locked.checkpoint AS last_checkpoint, locked.attempt_record, locked.replaces_record
),
finished AS (
    INSERT INTO finished_jobs ({{finished_columns}}, state_reason)
    SELECT {{copied_columns}}, attempt, last_crashes, {{attempts_and_record}}, coalesce(last_checkpoint, checkpoint),
        cancel_requested_at, outcome, :now, :keep_until, :archive, 'cancelled', 'cancelled_by_user'
    FROM deleted
),
{{recorded_cancelled_parents}},
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready, running, cancelled)
    SELECT :lane, {{deducted_counts}}, count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'cancelled' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission, attempt,
    NULL::float8 AS run_seconds
FROM deleted;

-- name: settlement_records
-- row: SettlementRecord
-- For settlements and heartbeats that matched no lease, and for repeated claims: the state of the
-- jobs, and by which token and outcome they were settled.
SELECT id, state, attempt, run_at, lease_token, settled_as
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[])
UNION ALL
SELECT id, state, attempt, NULL, lease_token, settled_as
FROM finished_jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND keep_until > :retention_now
UNION ALL
SELECT id, 'dead', attempt, NULL, lease_token, settled_as
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: wait_for_replication
-- Writes only a message to the write-ahead log. Its commit waits for the standby like any other.
-- Runs before the broker reports a settlement that it has found stored: this settlement may be
-- committed on the primary alone, because its own wait was cancelled. If it were reported without
-- this wait, a failover would lose an acknowledged settlement.
SELECT pg_logical_emit_message(true, 'longshore', 'settled');

-- name: expired_leases
-- Reads the index jobs_leased from :after on. Limited: after a stall there may be very many.
SELECT lane, id, lease_token
FROM jobs
WHERE lease_expires_at > :after AND lease_expires_at <= :until
ORDER BY lease_expires_at
LIMIT :limit;

-- name: leases_of_worker
-- For reconciling: the leases that a worker claimed at or before :claimed_before, which is 2 s
-- (RECONCILE_AFTER) before its heartbeat was received. Reads the index jobs_leased and fetches only
-- the rows of this worker.
SELECT lane, id, lease_token, unreported_since
FROM jobs
WHERE lease_expires_at IS NOT NULL AND worker_id = :worker_id AND started_at <= :claimed_before;

-- name: mark_unreported
-- running -> running (marked unreported), at the first of two heartbeats without the lease.
UPDATE jobs
SET unreported_since = :now
FROM unnest(:ids::uuid[], :tokens::uuid[]) AS input (id, token)
WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token
    AND jobs.state = 'running';

-- name: unused_tokens
-- For the restore (maintenance/restore.py): every token that could still settle a job, of running
-- jobs and of jobs whose lease has expired. Read in batches along the primary key.
SELECT lane, id, lease_token
FROM jobs
WHERE (lane, id) > (:after_lane::int, :after_id::uuid) AND lease_token IS NOT NULL AND settled_as IS NULL
ORDER BY lane, id
LIMIT :limit;
