-- Reads the reasons why a job is not running. Every statement reads a limited number of rows.

-- name: waiting_job
-- row: WaitingJobRow
SELECT priority, admission, waiting_for
FROM jobs
WHERE lane = :lane AND id = :id;

-- name: admitted_of_group
-- Reads the ids of the 20 oldest admitted jobs of a group.
WITH admitted AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE lane = :lane AND admission IS NOT NULL AND coalesce(group_key, '') = :group
)
SELECT id
FROM admitted
ORDER BY id
LIMIT 20;

-- name: ahead_in_group
-- Counts the pending jobs of the group that were created before the job, up to :limit.
SELECT count(*)
FROM (
    SELECT id
    FROM jobs
    WHERE lane = :lane AND pending_group = :group AND id < :id
    LIMIT :limit
) AS ahead;

-- name: ahead_in_queue
-- Counts the jobs that will be claimed before this job, among the first :limit ready jobs of the
-- lane.
SELECT count(DISTINCT id) FILTER (WHERE priority > :priority OR (priority = :priority AND id < :id))
FROM (
    SELECT span.priority, job.id
    FROM (
        SELECT priority, first_id, last_id
        FROM ready_spans
        WHERE lane = :lane
        ORDER BY priority DESC, first_id
        LIMIT :limit
    ) AS span
    CROSS JOIN LATERAL (
        SELECT id
        FROM jobs
        WHERE lane = :lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
            AND priority = span.priority
        ORDER BY id
    ) AS job
    LIMIT :limit
) AS first_jobs;

-- name: ahead_admitted
-- Like ahead_in_queue, for a fair queue, whose jobs are claimed pass by pass.
SELECT count(*) FILTER (WHERE priority > :priority OR (priority = :priority AND (admission, id) < (:admission, :id)))
FROM (
    SELECT priority, ready_admission AS admission, id
    FROM jobs
    WHERE lane = :lane AND ready_admission IS NOT NULL
    ORDER BY priority DESC, ready_admission, id
    LIMIT :limit
) AS first_jobs;
