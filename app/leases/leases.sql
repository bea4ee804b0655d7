-- Extends leases (heartbeat) and ends leases. Four statements end a lease: complete, requeue,
-- move_to_dead_letters and finish_cancelled. The statements that start a lease are in claims.sql.
--
-- Every statement finds a lease by its id and its lease_token, the fencing token:
--
--  * Every delivery replaces the token, so a stale worker matches no row.
--  * If settled_as is set, a settlement has used the token, and no other settlement can use it.
--  * An expiry ends the run, clears lease_expires_at and keeps the token. So a late settlement
--    still finds its job. A late heartbeat finds nothing, because the job is not running.
--
-- Lock order, written here for all packages (the row of a schedule is locked before all of these):
--
--   1. deduplication keys (deduplication_keys), by lane, then digest
--   2. lane_locks, by number: caller locks and queue locks (negative), then lane locks
--   3. jobs of one lane, by id; then jobs of the next lane
--
-- Arrays are sent sorted by id. Rows are always found by (lane, id = ANY). With a join by id alone,
-- the planner could read the whole lane, because its statistics may be from a time when the lane
-- was short. To requeue 1000 jobs took 750 ms with such a join, and takes 27 ms with id = ANY.
--
-- No index has the leases: the column lease_expires_at changes with every claim and heartbeat, and
-- an index with it would get a new entry each time. Statements that read all leases of a worker or
-- of a queue, or all that expire, find them by their lease checks (lease_checks.sql).

-- fragment: lock_if_unchanged
-- The end of a SELECT, after WHERE. Locks only leases that have not changed since the decision:
-- their state is the same, and for expire, timeout and reconcile no heartbeat came in between.
jobs.lane = :lane AND jobs.id = ANY(:id::uuid[]) AND jobs.settled_as IS NULL AND jobs.state = input.previous_state
    AND (input.expected_expiry IS NULL OR jobs.lease_expires_at = input.expected_expiry)
    AND (input.unreported_since IS NULL OR jobs.unreported_since = input.unreported_since)
ORDER BY jobs.id
FOR UPDATE OF jobs

-- fragment: attempts_and_record
-- The attempt records, with the new record at the end. A late failure replaces the record of its
-- own run (replaces_record). If there are more than :max_attempt_records, the oldest is dropped.
(attempts[1:coalesce(cardinality(attempts), 0) - replaces_record::int] || attempt_record)[
    greatest(1, coalesce(cardinality(attempts), 0) - replaces_record::int + 2 - :max_attempt_records):
]

-- fragment: deducted_counts
-- Subtracts the jobs of the CTE `deleted` from the counters scheduled, ready and running.
-count(*) FILTER (WHERE previous_state = 'scheduled'), -count(*) FILTER (WHERE previous_state IN {{shown_as_ready}}),
-count(*) FILTER (WHERE previous_state = 'running')

-- fragment: failed_count
-- The number to add to the counter `failed`. If a record is replaced, its run is counted already.
count(attempt_record) FILTER (WHERE NOT replaces_record)

-- name: heartbeat
-- row: HeartbeatRow
-- running -> running (lease extended).
--
-- A worker with a stale token matches no row. After the broker has ended an expired lease, its
-- worker matches no row either.
--
-- A heartbeat with lease_seconds may shorten the lease. A heartbeat without lease_seconds never
-- shortens it, because the claim may have requested a longer lease than the default. No heartbeat
-- extends a lease beyond the deadline of the run. From the deadline on, the response of the
-- heartbeat has the action `cancel`.
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
-- Also ready | pending | scheduled (if postponed) -> completed: a late settlement is accepted if
-- the job has not been delivered again, so that finished work is not thrown away.
--
-- If it ends all jobs of a claim, it deletes the lease check of the claim. All other ends of leases
-- leave that to the lease rescuer.
--
-- Postgres copies each row of `deleted` twice and reads it four times. So `deleted` has only the
-- columns that are needed, and the columns that only finished_jobs needs come last. In batches of
-- 100, a job takes 14.4 µs of CPU; with jobs.* it took 15.9 µs.
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
ended AS MATERIALIZED (
    SELECT {{claim_of_token}} AS claim, count(*) AS jobs
    FROM deleted
    GROUP BY {{claim_of_token}}
),
unchecked AS (
    DELETE FROM lease_checks
    USING ended
    WHERE lease_checks.lane = :lane AND lease_checks.claim = ANY(ARRAY(SELECT claim FROM ended))
        AND lease_checks.claim = ended.claim AND cardinality(lease_checks.job_ids) = ended.jobs
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
-- Reads the input of `retry_decision.decide`.
--
-- A lease can change between this statement and the statement that applies the decision:
--
--  * A change of the token or of the state makes the decision invalid: the row no longer matches.
--  * While token and state are the same, only lease_expires_at, unreported_since and
--    cancel_requested_at can change. `lock_if_unchanged` checks the first two. `requeue` and
--    `move_to_dead_letters` check the last.
--  * PATCH can change a waiting job. This statement reads a waiting job only for a late settlement.
--
-- The last attempt record of a waiting job says whether an expiry or a timeout has counted its run.
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
-- Requeues jobs that will run again. A worker requeues by fail, snooze or release. The broker
-- requeues by return (the job was not delivered), reconcile (the worker no longer lists the lease),
-- expire or timeout. After a late settlement, the job comes from ready, pending or scheduled, as in
-- `complete`.
--
--  * Skips a job whose cancellation was requested after the decision; the lease ender then decides
--    again.
--  * A job that is ready again keeps its admission, unless its group cools down (:cooling_groups).
--    A postponed job keeps its admission only in a strict group (:strict).
--  * The admission 0 is not kept; see concurrency.sql.
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
changed AS (
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
        quota_owner = NULL,
        deadline_at = NULL,
        -- Only a return or a reconcile keeps the start deadline: no worker has started the job.
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
    RETURNING jobs.id, jobs.state, jobs.priority, jobs.attempt, jobs.run_at, jobs.job_type, jobs.group_key,
        locked.previous_state, locked.attempt_record, locked.replaces_record, locked.admission
),
{{covering_spans}},
counted AS (
    INSERT INTO stat_deltas (lane, ready, running, scheduled, failed)
    SELECT :lane,
        count(*) FILTER (WHERE state IN {{shown_as_ready}})
            - count(*) FILTER (WHERE previous_state IN {{shown_as_ready}}),
        -count(*) FILTER (WHERE previous_state = 'running'),
        count(*) FILTER (WHERE state = 'scheduled') - count(*) FILTER (WHERE previous_state = 'scheduled'),
        {{failed_count}}
    FROM changed
    HAVING count(*) > 0
)
SELECT id, state, job_type, group_key, run_at, false AS has_dependents, admission, attempt, NULL::float8 AS run_seconds
FROM changed;

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
-- Ends leases with any outcome but completion, if a cancellation of the job was requested. Every
-- such end leaves an attempt record, so `attempt_record` is never NULL.
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
-- Reads the states of jobs, and the tokens and outcomes by which they were settled. Used for
-- settlements and heartbeats that matched no lease, and for repeated claims.
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
-- Waits until the standby has all earlier commits. The statement writes only a message to the
-- write-ahead log, and its commit waits for the standby like any other commit.
--
-- The broker runs this statement before it reports that an earlier call has stored a settlement. If
-- that call was cancelled while it waited for the standby, only the primary may have the
-- settlement. Without this statement, a failover would lose a settlement that the broker has
-- acknowledged.
SELECT pg_logical_emit_message(true, 'longshore', 'settled');

-- name: mark_unreported
-- running -> running (marked as unreported).
--
-- Runs at the first of two heartbeats that do not list the lease.
UPDATE jobs
SET unreported_since = :now
FROM unnest(:ids::uuid[], :tokens::uuid[]) AS input (id, token)
WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token
    AND jobs.state = 'running';

-- name: unused_tokens
-- Reads every token that could still settle a job, for maintenance/restore.py: the tokens of
-- running jobs, and of jobs whose lease has expired. Reads batches in the order of the primary key.
SELECT lane, id, lease_token
FROM jobs
WHERE (lane, id) > (:after_lane::int, :after_id::uuid) AND lease_token IS NOT NULL AND settled_as IS NULL
ORDER BY lane, id
LIMIT :limit;
