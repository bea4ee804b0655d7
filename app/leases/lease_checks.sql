-- Lease checks, which say when to look whether leases have expired, and the leases that they find.

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

-- name: unused_tokens
-- Reads every token that could still settle a job, for maintenance/restore.py: the tokens of
-- running jobs, and of jobs whose lease has expired. Reads batches in the order of the primary key.
SELECT lane, id, lease_token
FROM jobs
WHERE (lane, id) > (:after_lane::int, :after_id::uuid) AND lease_token IS NOT NULL AND settled_as IS NULL
ORDER BY lane, id
LIMIT :limit;
