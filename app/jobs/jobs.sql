-- Inserts, finds, updates, cancels and purges jobs. The statements on leases are in app/leases.
--
--  * A job that waits for admission (app/concurrency) is pending. The API shows and counts it as
--    ready. The indexes that claims read do not contain pending jobs.
--  * Lock order: see leases.sql.
--  * A statement that gets ids finds the rows by the primary key. Its WHERE has no condition that a
--    partial index could answer (due_at, pending_group, ready_admission or start_by IS NOT NULL),
--    because with stale statistics the planner would use that index (3.3 ms instead of 0.07 ms).

-- fragment: new_job
-- The columns that the caller of `enqueue` fills.
id, state, run_at, priority, max_attempts, job_type, waiting_for, depends_on, {{columns_as_sent}}

-- fragment: columns_as_sent
-- The columns of new_job that `enqueue` stores unchanged.
state_reason, group_key, lease_seconds, retry, tags, metadata, traceparent, tracestate, replayed_from, payload,
expires_at, timeout_seconds, unique_key, schedule, on_parent_failure, has_dependents, worker_id, started_at,
lease_token, lease_expires_at, deadline_at

-- fragment: stored_job
-- The columns of JobRow that jobs, finished_jobs and dead_letters all have.
lane, id, job_type, payload, priority, attempt, max_attempts, crashes, deliveries, run_at, started_at, worker_id,
progress, checkpoint, attempts, group_key, tags, metadata, replayed_from, replay_count, unique_key, schedule, depends_on

-- fragment: lock_waiting_job
SELECT id, state
FROM jobs
WHERE lane = :lane AND id = :job_id AND lease_expires_at IS NULL
FOR UPDATE

-- fragment: lock_waiting_jobs
-- Like `lock_jobs`, but leaves out the jobs that are leased.
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND lease_expires_at IS NULL
ORDER BY id
FOR UPDATE

-- fragment: count_and_return_changed
-- The end of a statement that changes a job: counts the change of state in the statistics, and
-- returns the job. `locked` is the job before the change, `changed` the job after it. A pending job
-- counts as ready.
counted AS (
    INSERT INTO stat_deltas (lane, ready, scheduled)
    SELECT :lane, (changed.state IN {{shown_as_ready}})::int - (locked.state IN {{shown_as_ready}})::int,
        (changed.state = 'scheduled')::int - (locked.state = 'scheduled')::int
    FROM locked, changed
    WHERE changed.state <> locked.state
),
{{covering_spans}}
SELECT {{moved_job}}
FROM changed

-- fragment: deducted_waiting
-- The values of the counters scheduled, blocked and ready for a deletion: minus the number of jobs
-- in the CTE `deleted`. A pending job counts as ready.
-count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state = 'blocked'),
-count(*) FILTER (WHERE state IN {{shown_as_ready}})

-- name: enqueue
-- (nothing) -> ready | pending | scheduled | blocked | running.
--
-- The broker has generated the ids. It has decided which jobs are due, and which are leased to
-- waiting pollers (running). If a column is never NULL and has the same value in all rows, the
-- broker sends an array with this one value. `unnest` fills the other rows with NULL, and
-- `coalesce` replaces NULL with the value. The broker also sends the ready spans of the jobs, the
-- lease checks of those that are leased, and the counts for the statistics.
WITH added AS (
    INSERT INTO jobs (lane, {{new_job}}, attempt, deliveries)
    SELECT :lane, id, coalesce(state, (:state::text[])[1]), coalesce(run_at, (:run_at::timestamptz[])[1]),
        coalesce(priority, (:priority::smallint[])[1]), coalesce(max_attempts, (:max_attempts::smallint[])[1]),
        coalesce(job_type, (:job_type::text[])[1]), waiting_for::uuid[], depends_on::uuid[], {{columns_as_sent}},
        (lease_token IS NOT NULL)::int, (lease_token IS NOT NULL)::int
    FROM unnest(
        :id::uuid[], :state::text[], :run_at::timestamptz[], :priority::smallint[], :max_attempts::smallint[],
        :job_type::text[], :waiting_for::text[], :depends_on::text[], :reason::text[], :group_key::text[],
        :lease_seconds::int[], :retry::text[], :tags::text[], :metadata::text[], :traceparent::text[],
        :tracestate::text[], :replayed_from::uuid[], :payload::text[], :expires_at::timestamptz[],
        :timeout_seconds::int[], :unique_key::text[], :schedule::text[], :on_parent_failure::text[],
        :has_dependents::boolean[], :worker_id::text[], :started_at::timestamptz[], :lease_token::uuid[],
        :lease_expires_at::timestamptz[], :deadline_at::timestamptz[]
    ) AS new ({{new_job}})
),
covered AS (
    INSERT INTO ready_spans (lane, priority, first_id, last_id)
    SELECT :lane, priority, first_id, last_id
    FROM unnest(:span_priorities::smallint[], :first_ids::uuid[], :last_ids::uuid[])
        AS span (priority, first_id, last_id)
),
checked AS (
    INSERT INTO lease_checks (lane, check_at, claim, worker_id, job_ids)
    SELECT :lane, check_at, claim, worker_id, job_ids::uuid[]
    FROM unnest(:check_at::timestamptz[], :claims::bytea[], :check_workers::text[], :checked_ids::text[])
        AS lease_check (check_at, claim, worker_id, job_ids)
)
INSERT INTO stat_deltas (lane, ready, scheduled, blocked, running, enqueued)
VALUES (:lane, :ready, :scheduled, :blocked, :running, :enqueued);

-- name: live_jobs
-- row: JobRow
SELECT {{stored_job}}, state, state_reason, NULL::timestamptz AS finished_at, lease_expires_at, NULL::text AS result,
    cancel_requested_at
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: live_ids
SELECT id
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: dead_ids
SELECT id
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: finished_jobs
-- row: JobRow
-- Leaves out jobs whose retention has ended, even if their partition is not dropped yet.
SELECT {{stored_job}}, state, state_reason, finished_at, NULL::timestamptz AS lease_expires_at, result,
    cancel_requested_at
FROM finished_jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND keep_until > :retention_now;

-- name: dead_jobs
-- row: JobRow
SELECT {{stored_job}}, 'dead' AS state, reason AS state_reason, dead_at AS finished_at,
    NULL::timestamptz AS lease_expires_at, NULL::text AS result, NULL::timestamptz AS cancel_requested_at
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: update_job
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> scheduled | blocked | ready | pending.
--
--  * Changes only the columns whose parameters are not NULL. A running job does not match.
--  * If :run_at is in the future, a ready job loses its admission. A scheduled job keeps its
--    admission, which only a retry has.
--  * If a job of a held group becomes due without an admission, it is pending until it is admitted.
--  * If :run_at differs from the job's run_at, state_reason is removed, except from a blocked job.
--  * A new payload removes an unused lease token, because a late settlement would refer to the old
--    payload.
WITH locked AS ({{lock_waiting_job}}),
changed AS (
    UPDATE jobs
    SET priority = coalesce(:priority, priority), run_at = coalesce(:run_at, run_at),
        payload = coalesce(:payload, payload), max_attempts = coalesce(:max_attempts, max_attempts),
        tags = coalesce(:tags, tags), metadata = coalesce(:metadata, metadata),
        lease_token = CASE WHEN :payload IS NULL OR settled_as IS NOT NULL THEN lease_token END,
        state = CASE
            WHEN :run_at IS NULL OR jobs.state = 'blocked' THEN jobs.state
            WHEN :run_at > :now THEN 'scheduled'
            WHEN jobs.state IN {{shown_as_ready}} THEN jobs.state
            ELSE {{due_state}}
        END,
        admission = CASE WHEN :run_at IS NULL OR :run_at <= :now OR jobs.state = 'scheduled' THEN admission END,
        state_reason = CASE WHEN :run_at IS NULL OR :run_at = run_at OR jobs.state = 'blocked' THEN state_reason END
    FROM locked
    WHERE jobs.lane = :lane AND jobs.id = :job_id AND jobs.id = locked.id
    RETURNING {{jobs_moved_job}}, jobs.priority
),
{{count_and_return_changed}};

-- name: replace_waiting
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> scheduled | blocked | ready | pending (new body).
--
-- The waiting job with the unique key gets the fields of the new job. It keeps its id, its age, its
-- group and its attempts. The checkpoint and progress of the old body are removed. An unused lease
-- token is removed, too, because a late settlement would refer to the old body.
WITH locked AS ({{lock_waiting_job}}),
changed AS (
    UPDATE jobs
    SET state = CASE
            WHEN jobs.state = 'blocked' THEN jobs.state
            WHEN :run_at::timestamptz > :now THEN 'scheduled'
            WHEN jobs.state IN {{shown_as_ready}} THEN jobs.state
            ELSE {{due_state}}
        END,
        admission = CASE WHEN :run_at <= :now OR jobs.state = 'scheduled' THEN admission END,
        state_reason = CASE WHEN jobs.state = 'blocked' THEN state_reason END,
        run_at = :run_at, priority = :priority, max_attempts = :max_attempts, job_type = :job_type,
        lease_seconds = :lease_seconds, retry = :retry, tags = :tags, metadata = :metadata, payload = :payload,
        expires_at = :expires_at, timeout_seconds = :timeout_seconds, traceparent = :traceparent,
        tracestate = :tracestate, checkpoint = NULL, progress = NULL,
        lease_token = CASE WHEN settled_as IS NOT NULL THEN lease_token END
    FROM locked
    WHERE jobs.lane = :lane AND jobs.id = :job_id AND jobs.id = locked.id
    RETURNING {{jobs_moved_job}}, jobs.priority
),
{{count_and_return_changed}};

-- name: cancel_waiting
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> cancelled.
--
-- A running job does not match; request_cancel asks its worker to stop. cancel_requested_at is set
-- if a user cancels the job, but not if the job is cancelled because a parent failed (:reason).
WITH locked AS (SELECT id {{lock_waiting_jobs}}),
deleted AS (
    DELETE FROM jobs
    WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM locked))
    RETURNING *
),
moved AS (
    INSERT INTO finished_jobs ({{finished_columns}}, state_reason)
    SELECT {{copied_columns}}, attempt, crashes, attempts, checkpoint,
        CASE WHEN :reason::text = 'cancelled_by_user' THEN :now::timestamptz END,
        settled_as, :now, :keep_until, :archive, 'cancelled', :reason
    FROM deleted
),
{{recorded_cancelled_parents}},
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready, cancelled)
    SELECT :lane, {{deducted_waiting}}, count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'cancelled' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission
FROM deleted;

-- name: move_unstarted_to_dead_letters
-- row: MovedJobRow
-- scheduled | blocked | ready | pending -> dead.
-- The job missed its start deadline (expires_at). A job that has started once cannot miss it,
-- because the end of a run clears expires_at, unless the delivery never reached its worker.
WITH locked AS (SELECT id, expires_at {{lock_waiting_jobs}}),
deleted AS (
    DELETE FROM jobs
    WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM locked WHERE expires_at <= :now))
    RETURNING *
),
dead_lettered AS (
    INSERT INTO dead_letters ({{dead_letter_columns}})
    SELECT {{copied_columns}}, lease_seconds, retry, timeout_seconds, attempt, crashes, attempts, checkpoint,
        settled_as, :now, 'expired', 'expired'
    FROM deleted
),
{{recorded_dead_parents}},
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready, dead)
    SELECT :lane, {{deducted_waiting}}, count(*)
    FROM deleted
    HAVING count(*) > 0
)
SELECT id, 'dead' AS state, job_type, group_key, NULL::timestamptz AS run_at, has_dependents, admission
FROM deleted;

-- name: past_start_deadline
-- Reads a range at the start of the index jobs_start_deadline.
SELECT id
FROM jobs
WHERE start_by <= :now
ORDER BY start_by
LIMIT :limit;

-- name: request_cancel
-- running -> running (asked to stop).
-- Returns for each job whether its worker had already been asked before.
UPDATE jobs
SET cancel_requested_at = coalesce(cancel_requested_at, :now)
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND state = 'running'
RETURNING id, cancel_requested_at < :now AS was_requested;

-- name: run_now
-- row: MovedJobRow
-- scheduled -> ready | pending.
WITH locked AS (
    SELECT id, state
    FROM jobs
    WHERE lane = :lane AND id = :job_id
    FOR UPDATE
),
changed AS (
    UPDATE jobs
    SET state = {{due_state}}, state_reason = NULL, run_at = :now
    FROM locked
    WHERE jobs.lane = :lane AND jobs.id = :job_id AND locked.state = 'scheduled'
    RETURNING {{jobs_moved_job}}, jobs.priority
),
{{count_and_return_changed}};

-- name: due_jobs
-- Reads the index jobs_due from its start up to :now. Has a limit, because very many jobs may be
-- due.
SELECT id
FROM jobs
WHERE due_at <= :now
ORDER BY due_at
LIMIT :limit;

-- name: next_due
-- Reads the first entry of the index jobs_due.
SELECT min(due_at)
FROM jobs
WHERE due_at IS NOT NULL;

-- name: make_due_ready
-- row: MovedJobRow
-- scheduled -> ready | pending.
-- Several brokers may run this at the same time: each skips the rows that another one has locked.
WITH locked AS MATERIALIZED (SELECT id, state, run_at {{lock_jobs}} SKIP LOCKED),
changed AS (
    UPDATE jobs
    SET state = {{due_state}}, state_reason = NULL
    WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'scheduled' AND run_at <= :now))
    RETURNING {{moved_job}}, priority
),
{{covering_spans}},
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, ready)
    SELECT :lane, -count(*), count(*)
    FROM changed
    HAVING count(*) > 0
)
SELECT {{moved_job}}
FROM changed;

-- name: count_waiting
-- Sums the counters of the statistics. The sum is exact in the snapshot of the statement, and costs
-- the same for ten jobs and for ten million.
SELECT coalesce(sum(scheduled + blocked + ready), 0)::bigint
FROM (
    SELECT scheduled, blocked, ready
    FROM stat_totals
    WHERE lane = ANY(:lanes::int[])
    UNION ALL
    SELECT scheduled, blocked, ready
    FROM stat_deltas
    WHERE lane = ANY(:lanes::int[])
) AS parts;

-- name: count_purgeable
SELECT count(*)
FROM jobs
WHERE lane >= :first_lane AND lane < :end_lane AND state = ANY(:states::text[]);

-- name: purgeable_jobs
-- Scans all lanes of a queue in lock order. (:after_lane, :after_id) is the last job of the
-- previous batch. Leaves out ids from :before_id on, because these jobs were inserted after the
-- purge began. Without that bound the purge of a busy queue would never end.
SELECT id
FROM jobs
WHERE (lane, id) > (:after_lane, :after_id) AND lane < :end_lane AND id < :before_id AND state = ANY(:states::text[])
ORDER BY lane, id
LIMIT :limit;

-- name: purge_waiting
-- scheduled | blocked | ready | pending -> (nothing).
--
-- A job that was claimed in the meantime does not match. A job that other jobs depend on is
-- recorded as purged in finished_parents, because otherwise its children would wait forever.
WITH locked AS (SELECT id, state {{lock_waiting_jobs}}),
deleted AS (
    DELETE FROM jobs
    WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = ANY(:states::text[])))
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
    SELECT :lane, {{deducted_waiting}}
    FROM deleted
    HAVING count(*) > 0
)
SELECT id
FROM deleted;
