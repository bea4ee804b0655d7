-- Schedules. The transaction that enqueues the due jobs of a schedule also advances its
-- next_run_at.
-- Lock order: the row of a schedule before anything that its jobs need (deduplication keys, lane
-- locks, jobs).

-- name: get_schedule
-- row: ScheduleRow
SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at
FROM schedules
WHERE name = $1;

-- name: list_schedules
-- Returns the first rows of a page that fit into $4 bytes, at least one, and the row count of the
-- page.
SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at, total
FROM (
    SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at, count(*) OVER () AS total,
        row_number() OVER by_name AS place, sum(octet_length(spec)) OVER by_name AS bytes
    FROM (
        SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at
        FROM schedules
        WHERE name > $1 AND ($3::text IS NULL OR coalesce(spec::json -> 'job' ->> 'queue', 'default') ~ $3)
        ORDER BY name
        LIMIT $2
    ) AS page
    WINDOW by_name AS (ORDER BY name ROWS UNBOUNDED PRECEDING)
) AS measured
WHERE place = 1 OR bytes <= $4
ORDER BY name;

-- name: lock_schedule
-- row: ScheduleRow
SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at
FROM schedules
WHERE name = $1
FOR UPDATE;

-- name: put_schedule
-- row: ScheduleRow
INSERT INTO schedules (name, spec, paused, next_run_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec, paused = excluded.paused, next_run_at = excluded.next_run_at, updated_at = excluded.updated_at
WHERE $6
RETURNING name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at;

-- name: delete_schedule
-- row: ScheduleRow
-- Jobs that the schedule has enqueued are kept.
DELETE FROM schedules
WHERE name = $1
RETURNING name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at;

-- name: pause_or_resume
-- row: ScheduleRow
UPDATE schedules
SET paused = $2, next_run_at = $3, updated_at = $4
WHERE name = $1
RETURNING name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at;

-- name: due_schedules
-- row: ScheduleRow
-- Reads a range at the start of schedules_next_run_at; paused and ended schedules have no next run.
-- Paginated, because a schedule that cannot fire stays due and must not hold up the others.
SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at
FROM schedules
WHERE next_run_at <= $1 AND (next_run_at, name) > ($2, $3)
ORDER BY next_run_at, name
LIMIT $4;

-- name: lock_due_schedule
-- row: ScheduleRow
-- Of several brokers, one locks the row; the others find it locked, or no longer due.
SELECT name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at
FROM schedules
WHERE name = $1 AND next_run_at <= $2 AND NOT paused
FOR UPDATE SKIP LOCKED;

-- name: advance_schedule
-- Runs in the transaction that enqueues the jobs. A skipped run (no job) keeps last_run_at and
-- last_job_id.
UPDATE schedules
SET next_run_at = $2, last_run_at = coalesce($3, last_run_at), last_job_id = coalesce($4, last_job_id)
WHERE name = $1;

-- name: next_schedule_at
-- Reads the first entry of schedules_next_run_at that is in the future.
SELECT min(next_run_at)
FROM schedules
WHERE next_run_at > $1;

-- name: live_job
-- A waiting or running job is in `jobs`; a finished or dead one is not.
SELECT id
FROM jobs
WHERE lane = $1 AND id = $2;
