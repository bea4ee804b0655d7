-- Claims jobs, and reads leases and ready jobs. Lock order: see leases.sql.

-- fragment: scan_ranges
-- The scan ranges of a claim, as a table with one row for each range.
unnest(:highest::smallint[], :lowest::smallint[], :after::uuid[], :until::uuid[])
    AS scan_range (highest, lowest, after, until)

-- fragment: response_bytes
-- The number of bytes that a job takes in a response.
:envelope_bytes + octet_length(payload)
    + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
    + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0)

-- fragment: claimable_jobs
-- The jobs of a scan range that may be claimed.
SELECT id, {{response_bytes}} AS size
FROM jobs
WHERE lane = :lane AND state = 'ready' AND priority <= scan_range.highest AND priority >= scan_range.lowest
    AND id > scan_range.after AND id <= scan_range.until
    AND (:job_types::text[] IS NULL OR job_type = ANY(:job_types::text[]))
    AND (expires_at IS NULL OR expires_at > :now)
    AND (:held_groups::text[] IS NULL OR admission IS NOT NULL OR NOT {{is_held}})

-- fragment: lease_picked
-- Leases the jobs of the CTE `picked`, if they fit into the response of their poller.
assigned AS (
    SELECT id, size, position, width_bucket(position, :slice_starts::bigint[]) + 1 AS slice_number
    FROM picked
),
measured AS (
    SELECT id, slice_number, size,
        sum(size) OVER (PARTITION BY slice_number ORDER BY position ROWS UNBOUNDED PRECEDING) AS bytes_so_far
    FROM assigned
),
claimed AS (
    UPDATE jobs
    SET state = 'running',
        state_reason = NULL,
        settled_as = NULL,
        unreported_since = NULL,
        attempt = attempt + 1,
        deliveries = deliveries + 1,
        worker_id = (:worker_ids::text[])[slice_number],
        started_at = :now,
        lease_token = md5(:secret || jobs.id::text)::uuid,
        lease_expires_at = to_timestamp(:now_epoch::float8
            + least(
                coalesce((:lease_seconds::int[])[slice_number], lease_seconds, :default_lease_seconds),
                timeout_seconds
            )),
        deadline_at = to_timestamp(:now_epoch::float8 + timeout_seconds),
        uses_slot = :uses_slot,
        quota_owner = :quota_owner
    FROM measured
    WHERE lane = :lane
        AND jobs.id = ANY(ARRAY(
            SELECT id
            FROM measured
            WHERE bytes_so_far <= :max_bytes OR (:allow_one_oversized AND bytes_so_far = size)
        ))
        AND jobs.id = measured.id
    RETURNING jobs.id, job_type, payload, attempt, max_attempts, deliveries, lease_token, lease_expires_at, crashes,
        run_at, priority, {{delivered_columns}}, slice_number, size
),
counted AS (
    INSERT INTO stat_deltas (lane, ready, running)
    SELECT :lane, -count(*), count(*)
    FROM claimed
    HAVING count(*) > 0
)
SELECT :lane AS lane, id, job_type, payload, attempt, max_attempts, deliveries, lease_token, :now_epoch AS started_epoch,
    date_part('epoch', lease_expires_at - :now) AS lease_seconds,
    CASE WHEN crashes = 0 THEN date_part('epoch', :now - greatest(run_at, 'epoch')) END AS waited_seconds,
    priority, {{delivered_columns}}, slice_number, size
FROM claimed

-- fragment: delivered_columns
-- The columns that a delivery returns as they are stored.
checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on, admission

-- name: claim
-- row: ClaimedRow
-- ready -> running.
--
-- Claims up to :limit ready jobs of one lane: highest priority first, oldest first within a
-- priority.
--
-- Pollers can share this statement (db/batcher.py). :worker_ids and :lease_seconds have one element
-- for each poller. :slice_starts has the position of the first job of the second, third, … poller.
-- The first poller gets the first jobs. Jobs that do not fit into a poller's response (:max_bytes)
-- stay ready.
--
--  * The claim counts the attempt, because a failure may never be reported: a job whose workers
--    crash silently must not be retried forever.
--  * The lease token is a hash of the claim's secret and the job id. It is as random as the secret,
--    and the broker sends one secret instead of one token per row.
--  * Times that depend on a column are computed with to_timestamp(), which is immutable. Citus
--    rejects `timestamptz + interval` if the interval depends on a column.
--  * The UPDATE finds its rows by an array of ids. With a join alone, the generic plan would scan
--    the whole table.
--  * In held groups (:held_groups) only admitted jobs are claimed. A job without an admission may
--    be ready for a moment, if a process inserted it that did not know the limit yet.
--  * :uses_slot marks leases that count against max_running. :quota_owner is the caller against
--    whose quota the leases count; NULL if the caller has no quota.
--  * Scan ranges are read one after the other, only until there are enough jobs; see
--    leases/low_water_marks.py. Their bounds come from `unnest` and not from parameters, so the
--    planner cannot see the values. The custom plan and the generic plan then have the same row
--    estimate, and Postgres keeps the generic plan. With the bounds as parameters, Postgres planned
--    every claim of one job again.
--  * Durations are returned as seconds, because the driver decodes a timestamp in 1 µs and a number
--    in 0.05 µs.
--  * waited_seconds is the time since run_at. It is NULL after a crash, because the job ran in
--    between. It is too long after a release, a return or a reconcile: they keep run_at, so the
--    earlier run counts as waiting. The time at which a job last became claimable is not stored.
WITH picked AS MATERIALIZED (
    SELECT candidate.id, candidate.size, row_number() OVER () AS position
    FROM {{scan_ranges}}
    CROSS JOIN LATERAL (
        {{claimable_jobs}}
        ORDER BY priority DESC, id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT :limit
),
{{lease_picked}};

-- name: claim_admitted
-- row: ClaimedRow
-- ready -> running.
--
-- Like `claim`, for a fair queue: claims only admitted jobs, within a priority in the order of
-- their `admission`.
WITH picked AS MATERIALIZED (
    SELECT candidate.id, candidate.size, row_number() OVER () AS position
    FROM {{scan_ranges}}
    CROSS JOIN LATERAL (
        {{claimable_jobs}} AND admission IS NOT NULL
        ORDER BY priority DESC, admission, id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT :limit
),
{{lease_picked}};

-- name: first_ready
-- Finds the first ready job of each of these priorities, for the low-water marks. Reads past all
-- dead index entries, so that claims do not have to.
SELECT input.priority, candidate.id
FROM unnest(:priorities::smallint[]) AS input (priority)
CROSS JOIN LATERAL (
    SELECT id
    FROM jobs
    WHERE lane = :lane AND state = 'ready' AND priority = input.priority
    ORDER BY id
    LIMIT 1
) AS candidate;

-- name: count_leases_of_caller
-- Counts the leases that count against the quota of a caller.
SELECT count(*)
FROM jobs
WHERE quota_owner = :quota_owner AND lease_expires_at IS NOT NULL;

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
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND lease_token = md5(:secret || id::text)::uuid AND state = 'running';

-- name: ready_lanes
-- Finds the lanes among :lanes that have a ready job, for the ready poller. Takes one look-up in
-- the index jobs_ready for each lane.
SELECT input.lane
FROM unnest(:lanes::int[]) AS input (lane)
WHERE EXISTS (SELECT FROM jobs WHERE jobs.lane = input.lane AND jobs.state = 'ready');
