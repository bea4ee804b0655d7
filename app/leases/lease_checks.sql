-- Lease checks: when to look whether leases have expired, and which leases a worker has. A claim inserts
-- them (claim_jobs), and so does an enqueue whose jobs are leased to waiting pollers (jobs.sql).

-- name: check_shortened_leases
-- Adds a lease check for the leases that a heartbeat is going to shorten. Runs right before the
-- heartbeat: a check too many does no harm, and a heartbeat with an INSERT in a CTE would run on all
-- nodes of a cluster.
INSERT INTO lease_checks (lane, check_at, claim, job_ids)
SELECT :lane, min(input.ends_at), :claim, array_agg(jobs.id)
FROM jobs
JOIN unnest(:ids::uuid[], :ends_at::timestamptz[]) AS input (id, ends_at) ON input.id = jobs.id
WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.state = 'running'
    AND jobs.lease_expires_at > input.ends_at
HAVING count(*) > 0;

-- name: due_checks
-- Reads the lease checks that are due, from :after on, in the index lease_checks_check_at. Limited
-- in rows and in jobs, because after a stall there may be very many.
SELECT lane, claim, job_ids
FROM (
    SELECT lane, claim, job_ids,
        sum(cardinality(job_ids)) OVER (ORDER BY check_at ROWS UNBOUNDED PRECEDING) - cardinality(job_ids)
            AS jobs_before
    FROM lease_checks
    WHERE check_at > :after AND check_at <= :until
    ORDER BY check_at
    LIMIT :limit
) AS due
WHERE jobs_before < :max_jobs;

-- name: expired_leases
-- The leases of these jobs that have expired.
SELECT id, lease_token
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND state = 'running' AND lease_expires_at <= :now;

-- name: move_checks
-- Moves lease checks to the next end of a lease of their jobs, but not before :earliest. Deletes
-- those without a running job. Skips checks that another broker is moving.
WITH locked AS MATERIALIZED (
    SELECT claim, job_ids
    FROM lease_checks
    WHERE lane = :lane AND claim = ANY(:claims::bytea[])
    ORDER BY claim
    FOR UPDATE SKIP LOCKED
),
looked AS MATERIALIZED (
    SELECT claim, (
        SELECT min(lease_expires_at)
        FROM jobs
        WHERE lane = :lane AND id = ANY(locked.job_ids) AND state = 'running'
    ) AS next_end
    FROM locked
),
deleted AS (
    DELETE FROM lease_checks
    WHERE lane = :lane AND claim = ANY(ARRAY(SELECT claim FROM looked WHERE next_end IS NULL))
),
moved AS (
    UPDATE lease_checks
    SET check_at = greatest(looked.next_end, :earliest)
    FROM looked
    WHERE lease_checks.lane = :lane
        AND lease_checks.claim = ANY(ARRAY(SELECT claim FROM looked WHERE next_end IS NOT NULL))
        AND lease_checks.claim = looked.claim
)
SELECT count(*)
FROM locked;

-- name: leases_of_worker
-- Finds the leases that a worker claimed at or before :claimed_before, to reconcile them. That time
-- is 2 s (RECONCILE_AFTER) before the broker received the heartbeat. Reads the lease checks of the
-- worker, and the jobs of each.
SELECT lease.lane, lease.id, lease.lease_token, lease.unreported_since
FROM (SELECT lane, claim, job_ids FROM lease_checks WHERE worker_id = :worker_id) AS lease_check
CROSS JOIN LATERAL (
    SELECT lane, id, lease_token, unreported_since
    FROM jobs
    WHERE jobs.lane = lease_check.lane AND jobs.id = ANY(lease_check.job_ids) AND state = 'running'
        AND worker_id = :worker_id AND started_at <= :claimed_before AND {{claim_of_token}} = lease_check.claim
    OFFSET 0
) AS lease;
