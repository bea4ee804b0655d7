-- Reads and writes the workers and the poll history. A background service writes both every second,
-- for all workers and polls since its last write. For a request that reads the tables, the broker
-- writes before it reads. A claim never writes them.

-- fragment: leases_of_worker
-- The number of leases of a row of `workers`.
(
    SELECT count(*)
    FROM (SELECT lane, claim, job_ids FROM lease_checks WHERE worker_id = workers.id) AS lease_check
    CROSS JOIN LATERAL (
        SELECT id
        FROM jobs
        WHERE jobs.lane = lease_check.lane AND jobs.id = ANY(lease_check.job_ids) AND state = 'running'
            AND worker_id = workers.id AND {{claim_of_token}} = lease_check.claim
        OFFSET 0
    ) AS lease
)

-- name: record_workers
-- Adds workers only if the table then has at most :max_rows rows. Updates stored workers in any
-- case. The rows are counted only if there is a new worker.
INSERT INTO workers (id, last_seen_at)
SELECT seen.id, :now
FROM unnest(:ids::text[]) AS seen (id)
WHERE EXISTS (SELECT FROM workers WHERE id = seen.id)
    OR (SELECT count(*) FROM workers) + cardinality(:ids::text[]) <= :max_rows
ORDER BY seen.id
ON CONFLICT (id) DO UPDATE
SET last_seen_at = greatest(workers.last_seen_at, excluded.last_seen_at);

-- name: workers_with_directive
-- Reads the workers that should drain or stop. Every broker reads them every second, because there
-- are few of them.
SELECT id, directive
FROM workers
WHERE directive <> 'run';

-- name: set_directive
UPDATE workers
SET directive = :directive
WHERE id = :id
RETURNING id;

-- name: list_workers
-- row: WorkerRow
-- Lists workers. Counts the leases of each by its lease checks.
SELECT workers.id, workers.directive, workers.last_seen_at, {{leases_of_worker}} AS leases
FROM workers
WHERE workers.id > :after
ORDER BY workers.id
LIMIT :limit;

-- name: get_worker
-- row: WorkerRow
SELECT workers.id, workers.directive, workers.last_seen_at, {{leases_of_worker}} AS leases
FROM workers
WHERE workers.id = :id;

-- name: delete_workers
-- Deletes workers that were last seen before :seen_before. Keeps a worker with a directive until
-- :directed_seen_before, because the worker may come back.
DELETE FROM workers
WHERE last_seen_at < :seen_before AND (directive = 'run' OR last_seen_at < :directed_seen_before)
RETURNING id;

-- name: record_polls
-- Adds polls only if the table then has at most :max_rows rows, like record_workers.
INSERT INTO poll_history (queue, job_type, last_polled_at)
SELECT input.queue, input.job_type, :now
FROM unnest(:queues::text[], :job_types::text[]) AS input (queue, job_type)
WHERE EXISTS (SELECT FROM poll_history WHERE queue = input.queue AND job_type = input.job_type)
    OR (SELECT count(*) FROM poll_history) + cardinality(:queues::text[]) <= :max_rows
ORDER BY input.queue, input.job_type
ON CONFLICT (queue, job_type) DO UPDATE
SET last_polled_at = greatest(poll_history.last_polled_at, excluded.last_polled_at);

-- name: last_polled
-- Returns the time of the last poll of this queue that accepts jobs of this type.
SELECT max(last_polled_at)
FROM poll_history
WHERE queue = :queue AND job_type IN ('', :job_type);

-- name: delete_poll_history
DELETE FROM poll_history
WHERE last_polled_at < :before;
