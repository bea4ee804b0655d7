-- Heartbeats: extend leases, and find the leases that a worker no longer lists. Lock order: see
-- leases.sql.

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

-- name: mark_unreported
-- running -> running (marked as unreported).
--
-- Runs at the first of two heartbeats that do not list the lease.
UPDATE jobs
SET unreported_since = :now
FROM unnest(:ids::uuid[], :tokens::uuid[]) AS input (id, token)
WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.id = input.id AND jobs.lease_token = input.token
    AND jobs.state = 'running';
