-- Schedules.
--
-- The transaction that enqueues the due jobs of a schedule also advances its next_run_at. Lock
-- order: the row of a schedule is locked before all rows that its jobs need (deduplication keys,
-- lane locks, jobs).

-- fragment: schedule_columns
-- The columns of ScheduleRow.
name, spec, paused, next_run_at, last_run_at, last_job_id, created_at, updated_at

-- name: get_schedule
-- row: ScheduleRow
SELECT {{schedule_columns}}
FROM schedules
WHERE name = :name;

-- name: list_schedules
-- Returns as many rows of a page as fit into :max_bytes, at least one. `total` is the number of rows
-- that the page has without that limit. :queue_regex matches the accessible queues; NULL for all.
SELECT {{schedule_columns}}, total
FROM (
    SELECT {{schedule_columns}},
        count(*) OVER () AS total,
        row_number() OVER by_name AS place,
        sum(octet_length(spec)) OVER by_name AS bytes
    FROM (
        SELECT {{schedule_columns}}
        FROM schedules
        WHERE name > :after
            AND (:queue_regex::text IS NULL OR coalesce(spec::json -> 'job' ->> 'queue', 'default') ~ :queue_regex)
        ORDER BY name
        LIMIT :limit
    ) AS page
    WINDOW by_name AS (ORDER BY name ROWS UNBOUNDED PRECEDING)
) AS measured
WHERE place = 1 OR bytes <= :max_bytes
ORDER BY name;

-- name: lock_schedule
-- row: ScheduleRow
SELECT {{schedule_columns}}
FROM schedules
WHERE name = :name
FOR UPDATE;

-- name: put_schedule
-- row: ScheduleRow
-- Inserts a schedule, or updates an existing schedule. :is_locked says whether the caller has
-- locked the existing row. If the schedule exists and :is_locked is false, changes and returns no
-- row.
INSERT INTO schedules (name, spec, paused, next_run_at, created_at, updated_at)
VALUES (:name, :spec, :paused, :next_run_at, :now, :now)
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec,
    paused = excluded.paused,
    next_run_at = excluded.next_run_at,
    updated_at = excluded.updated_at
WHERE :is_locked
RETURNING {{schedule_columns}};

-- name: delete_schedule
-- row: ScheduleRow
-- Jobs that the schedule has enqueued are kept.
DELETE FROM schedules
WHERE name = :name
RETURNING {{schedule_columns}};

-- name: pause_or_resume
-- row: ScheduleRow
UPDATE schedules
SET paused = :paused, next_run_at = :next_run_at, updated_at = :now
WHERE name = :name
RETURNING {{schedule_columns}};

-- name: due_schedules
-- row: ScheduleRow
-- Reads a range at the start of the index schedules_next_run_at. Paused and ended schedules have no
-- next run. Reads page by page, because schedules that cannot fire stay due, and the schedules
-- after them must still fire.
SELECT {{schedule_columns}}
FROM schedules
WHERE next_run_at <= :now AND (next_run_at, name) > (:after_run_at, :after_name)
ORDER BY next_run_at, name
LIMIT :limit;

-- name: lock_due_schedule
-- row: ScheduleRow
-- If several brokers run this at the same time, one of them locks the row. The others get no row,
-- because the row is locked or no longer due.
SELECT {{schedule_columns}}
FROM schedules
WHERE name = :name AND next_run_at <= :now AND NOT paused
FOR UPDATE SKIP LOCKED;

-- name: advance_schedule
-- Runs in the transaction that enqueues the jobs. A skipped run (no job) keeps last_run_at and
-- last_job_id.
UPDATE schedules
SET next_run_at = :next_run_at,
    last_run_at = coalesce(:last_run_at, last_run_at),
    last_job_id = coalesce(:last_job_id, last_job_id)
WHERE name = :name;

-- name: next_schedule_at
-- Reads the first entry of the index schedules_next_run_at that is in the future.
SELECT min(next_run_at)
FROM schedules
WHERE next_run_at > :now;

-- name: is_job_live
-- Returns a row if the job waits or runs. A finished or dead job is not in `jobs`.
SELECT id
FROM jobs
WHERE lane = :lane AND id = :id;
