-- Claims jobs, and reads leases and ready jobs. Lock order: see leases.sql.

-- fragment: response_bytes
-- The number of bytes that a job takes in a response.
:envelope_bytes + octet_length(payload)
    + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
    + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0)

-- fragment: delivered_columns
-- The columns that a delivery returns as they are stored.
checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on, admission

-- name: claim
-- row: ClaimedRow
-- ready -> running. The function is in alembic/versions/0001_baseline.8_claims.up.sql.
SELECT :lane::int AS lane, id, job_type, payload, attempt, max_attempts, deliveries, lease_token,
    :now_epoch::float8 AS started_epoch, lease_seconds, waited_seconds, priority, {{delivered_columns}}, slice_number,
    size
FROM claim_jobs(
    :lane, :limit, :fair, :highest::smallint[], :lowest::smallint[], :after::uuid[], :until::uuid[],
    :job_types::text[], :held_groups::text[], :now, :now_epoch, :secret, :claims, :worker_ids::text[],
    :lease_seconds::int[], :default_lease_seconds, :slice_starts::bigint[], :envelope_bytes, :max_bytes,
    :allow_one_oversized, :uses_slot::boolean, :quota_owner::text
);

-- name: first_ready
-- Finds the first ready job of each of these priorities, for the low-water marks. Reads past all
-- dead index entries, so that claims do not have to.
SELECT input.priority, candidate.id
FROM unnest(:priorities::smallint[]) AS input (priority)
CROSS JOIN LATERAL (
    SELECT job.id
    FROM (
        SELECT priority, first_id, last_id
        FROM ready_spans
        WHERE lane = :lane AND priority = input.priority
        ORDER BY first_id
    ) AS span
    CROSS JOIN LATERAL ({{first_ready_in_span}}) AS job
    LIMIT 1
) AS candidate;

-- name: count_leases_of_caller
-- Counts the leases that count against the quota of a caller.
SELECT count(*)
FROM jobs
WHERE quota_owner = :quota_owner;

-- name: leases_with_secret
-- row: ClaimedRow
-- Reads the leases of the first claim that are still live, for a repeated claim. lease_seconds is
-- the time from the start of the run to the current expiry, because heartbeats may have extended
-- the lease.
SELECT lane, id, job_type, payload, attempt, max_attempts, deliveries, lease_token,
    date_part('epoch', started_at - to_timestamp(0)) AS started_epoch,
    date_part('epoch', lease_expires_at - started_at) AS lease_seconds,
    NULL::float8 AS waited_seconds,
    priority, {{delivered_columns}}, 1 AS slice_number, {{response_bytes}} AS size
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND state = 'running'
    AND lease_token = (:claim || right(md5(:secret || id::text), 16))::uuid;

-- name: ready_lanes
-- Finds the lanes among :lanes that have a ready span, for the ready poller. Takes one look-up for
-- each lane. A claim removes a span without ready jobs.
SELECT input.lane
FROM unnest(:lanes::int[]) AS input (lane)
CROSS JOIN LATERAL (SELECT first_id FROM ready_spans WHERE ready_spans.lane = input.lane LIMIT 1) AS span;
