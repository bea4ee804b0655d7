-- Workers and poll history. Written by a maintenance service, at most once a second for all workers
-- that were seen since; never on the path of a claim.

-- name: record_workers
INSERT INTO workers (id, last_seen_at)
SELECT seen.id, $2
FROM unnest($1::text[]) AS seen (id)
ORDER BY seen.id
ON CONFLICT (id) DO UPDATE
SET last_seen_at = greatest(workers.last_seen_at, excluded.last_seen_at);

-- name: workers_with_directive
-- Workers that should drain or stop. There are few of them; every broker reads them every second.
SELECT id, directive
FROM workers
WHERE directive <> 'run';

-- name: set_directive
UPDATE workers
SET directive = $2
WHERE id = $1
RETURNING id;

-- name: list_workers
-- row: WorkerRow
-- Counts held leases over the index of leases, not over the backlog.
SELECT workers.id, workers.directive, workers.last_seen_at, coalesce(held.leases, 0) AS leases
FROM workers
LEFT JOIN (
    SELECT worker_id, count(*) AS leases
    FROM jobs
    WHERE lease_expires_at IS NOT NULL
    GROUP BY worker_id
) AS held ON held.worker_id = workers.id
WHERE workers.id > $1
ORDER BY workers.id
LIMIT $2;

-- name: get_worker
-- row: WorkerRow
SELECT workers.id, workers.directive, workers.last_seen_at,
    (SELECT count(*) FROM jobs WHERE lease_expires_at IS NOT NULL AND worker_id = $1) AS leases
FROM workers
WHERE workers.id = $1;

-- name: delete_workers
-- Workers not seen since $1. Those with a directive are kept until $2, because they may come back.
DELETE FROM workers
WHERE last_seen_at < $1 AND (directive = 'run' OR last_seen_at < $2)
RETURNING id;

-- name: record_polls
INSERT INTO poll_history (queue, job_type, last_polled_at)
SELECT input.queue, input.job_type, $3
FROM unnest($1::text[], $2::text[]) AS input (queue, job_type)
ORDER BY input.queue, input.job_type
ON CONFLICT (queue, job_type) DO UPDATE
SET last_polled_at = greatest(poll_history.last_polled_at, excluded.last_polled_at);

-- name: last_polled
-- The last poll of this queue that accepts jobs of this type.
SELECT max(last_polled_at)
FROM poll_history
WHERE queue = $1 AND job_type IN ('', $2);

-- name: delete_poll_history
DELETE FROM poll_history
WHERE last_polled_at < $1;
