-- Pieces of SQL that statements of several packages share. A statement contains them as {{name}}.

-- fragment: is_held
-- Whether a job (a row of `jobs`) belongs to a held group, and therefore needs an admission.
-- :held_groups lists the held groups: `*` stands for every group, the empty text for the jobs
-- without a group. If :held_groups is NULL, no group is held.
(coalesce(jobs.group_key, '') = ANY(:held_groups::text[])
    OR (jobs.group_key IS NOT NULL AND '*' = ANY(:held_groups::text[])))

-- fragment: due_state
-- The state of a job (a row of `jobs`) that is due: `pending` if its group is held, otherwise
-- `ready`. A retry that has kept its admission is `ready` in any case.
CASE WHEN jobs.admission IS NULL AND {{is_held}} THEN 'pending' ELSE 'ready' END

-- fragment: lock_jobs
-- The end of a SELECT, after its columns. Locks the jobs :ids of one lane, in lock order.
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[])
ORDER BY id
FOR UPDATE

-- fragment: shown_as_ready
-- The states that the API shows and counts as `ready`. Used as `state IN {{shown_as_ready}}`.
('ready', 'pending')

-- fragment: moved_job
-- The columns of MovedJobRow (events.py), for a job that has reached a new state.
id, state, job_type, group_key, run_at, has_dependents, admission

-- fragment: jobs_moved_job
-- Like moved_job, for a statement that joins `jobs` to another table.
jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission

-- fragment: row_is_held
-- Like is_held, for a row of a CTE instead of a row of `jobs`.
(coalesce(group_key, '') = ANY(:held_groups::text[]) OR (group_key IS NOT NULL AND '*' = ANY(:held_groups::text[])))

-- fragment: covering_spans
-- A CTE that inserts a ready span for each job in `changed` that has become ready.
covered AS (
    INSERT INTO ready_spans (lane, priority, first_id, last_id)
    SELECT :lane, priority, id, id
    FROM changed
    WHERE state = 'ready'
)

-- fragment: first_ready_in_span
-- The first ready job of a row `span` of ready_spans.
SELECT id, run_at
FROM jobs
WHERE lane = :lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready' AND priority = span.priority
ORDER BY id
LIMIT 1

-- fragment: claim_of_token
-- The claim that a lease token belongs to: its first half.
substr(uuid_send(lease_token), 1, 8)

-- fragment: ready_and_scheduled_counts
-- The values of the columns ready and scheduled of a row of stat_deltas. A pending job counts as
-- ready.
count(*) FILTER (WHERE state IN {{shown_as_ready}}), count(*) FILTER (WHERE state = 'scheduled')

-- fragment: copied_columns
-- The columns that are copied unchanged from `jobs` to finished_jobs and to dead_letters.
lane, id, deliveries, run_at, started_at, priority, max_attempts, replay_count, lease_token, worker_id, job_type,
group_key, progress, tags, metadata, traceparent, tracestate, replayed_from, payload, unique_key, schedule, depends_on

-- fragment: finished_columns
-- The columns of finished_jobs that every statement sets. `result` and `state_reason` are missing:
-- only some statements set them.
{{copied_columns}}, attempt, crashes, attempts, checkpoint, cancel_requested_at, settled_as, finished_at, keep_until,
archive, state

-- fragment: dead_letter_columns
-- The columns of dead_letters that every statement sets. `error_type` is missing: only some
-- statements set it.
{{copied_columns}}, lease_seconds, retry, timeout_seconds, attempt, crashes, attempts, checkpoint, settled_as, dead_at,
reason, fingerprint

-- fragment: recorded_cancelled_parents
-- A CTE. Records the cancelled jobs on which other jobs depend, for the dependency resolver.
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'cancelled'
    {{from_deleted_parents}}
)

-- fragment: recorded_dead_parents
-- A CTE. Records the dead jobs on which other jobs depend, for the dependency resolver.
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'dead'
    {{from_deleted_parents}}
)

-- fragment: from_deleted_parents
-- The end of an INSERT into finished_parents, after its SELECT list. The parents are the rows of
-- the CTE `deleted` on which other jobs depend. The row of a parent can exist already, because a
-- replayed dead letter finishes a second time.
FROM deleted
WHERE has_dependents
ON CONFLICT (lane, id) DO UPDATE
SET state = excluded.state
