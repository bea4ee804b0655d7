-- Enforces the limits of queues and groups: counts leases, admits jobs, and stores cool-downs.
--
-- A job that waits for an admission is pending. An admitted job has a number in `admission` until
-- it has ended or is postponed:
--
--   NULL   not admitted
--   0      running beyond a limit that was lowered (`revoke_above_limit`); the number is not kept
--          when the lease ends
--   1      admitted
--   n      in a fair queue: admitted in pass n
--
-- In a strict group (max_running_per_group = 1) a postponed job keeps its admission.
--
-- Jobs are admitted, and admissions counted and revoked, under the lane lock, so that no two
-- brokers decide at the same time. leases.sql describes the lock order, and why statements contain
-- `id = ANY` in addition to a join.

-- name: count_slots
-- Counts the leases that use a concurrency slot (max_running).
SELECT count(*)
FROM jobs
WHERE lane = :lane AND uses_slot;

-- name: rate_limit_usage
-- row: UsageRow
-- Sums the rate-limit usage since :since, and returns when its first and last slice began.
SELECT coalesce(sum(count), 0)::bigint AS used, min(at) AS first_at, max(at) AS last_at
FROM rate_limit_usage
WHERE lane = :lane AND at >= :since;

-- name: record_usage
-- Adds :count jobs to the slice that starts at :slice_start. Deletes the slices that started before
-- :delete_before. Each slice is one row.
WITH deleted AS (
    DELETE FROM rate_limit_usage
    WHERE lane = :lane AND at < :delete_before
),
updated AS (
    UPDATE rate_limit_usage
    SET count = count + :count
    WHERE lane = :lane AND at = :slice_start
    RETURNING at
)
INSERT INTO rate_limit_usage (lane, at, count)
SELECT :lane, :slice_start, :count
WHERE NOT EXISTS (SELECT FROM updated);

-- name: group_usage
-- row: GroupUsageRow
-- For each group: counts the admitted jobs, and those of them that no worker has claimed yet. Finds
-- the oldest admitted job that is ready; in a :strict group, that job may also be running.
SELECT coalesce(group_key, '') AS group_key,
    count(*) AS admitted,
    count(*) FILTER (WHERE state = 'ready') AS ready,
    (array_agg(id ORDER BY id) FILTER (WHERE state = 'ready' OR (:strict AND state = 'running')))[1]
        AS oldest_admitted
FROM jobs
WHERE lane = :lane AND admission IS NOT NULL AND coalesce(group_key, '') = ANY(:groups::text[])
GROUP BY coalesce(group_key, '');

-- name: next_pending
-- row: PendingRow
-- Reads the oldest pending jobs of each group, at most :max_jobs of the group. Returns at most
-- :limit rows in all, because the caller holds the lane lock.
SELECT pending.id, input.group_key, pending.priority
FROM unnest(:group_key::text[], :max_jobs::int[]) AS input (group_key, max_jobs)
CROSS JOIN LATERAL (
    SELECT id, priority
    FROM jobs
    WHERE lane = :lane AND pending_group = input.group_key
    ORDER BY id
    LIMIT input.max_jobs
) AS pending
LIMIT :limit;

-- name: last_passes
-- row: PassRow
-- Reads, for each group and priority of a fair queue, the last pass of the group, and the current
-- pass, which is being served.
SELECT input.group_key, input.priority,
    (
        SELECT max(admission)
        FROM jobs
        WHERE lane = :lane
            AND admission IS NOT NULL
            AND coalesce(jobs.group_key, '') = input.group_key
            AND jobs.priority = input.priority
    ) AS last,
    (
        SELECT min(ready_admission)
        FROM jobs
        WHERE lane = :lane AND ready_admission IS NOT NULL AND jobs.priority = input.priority
    ) AS current
FROM unnest(:group_key::text[], :priority::smallint[]) AS input (group_key, priority);

-- name: admit
-- row: MovedJobRow
-- pending -> ready
--
-- Admits those of the jobs that are still pending.
WITH locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = :lane AND id = ANY(:id::uuid[])
    ORDER BY id
    FOR UPDATE
),
changed AS (
    UPDATE jobs
    SET state = 'ready', admission = input.admission
    FROM unnest(:id::uuid[], :admission::bigint[]) AS input (id, admission)
    WHERE jobs.lane = :lane
        AND jobs.id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'pending'))
        AND jobs.id = input.id
    RETURNING {{jobs_moved_job}}, jobs.priority
),
{{covering_spans}}
SELECT {{moved_job}}
FROM changed;

-- name: revoke_admissions
-- ready -> pending
--
-- Revokes the admissions of the ready jobs of a group. The group cools down, or it is strict and
-- has an older pending job (`revoke_for_older_jobs`). Running jobs continue.
--
-- One CTE finds the rows, and the next CTE locks them. In a single step, the planner may scan the
-- whole lane by the primary key, because that scan returns the ids in the order of the locks.
WITH admitted AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE lane = :lane AND admission IS NOT NULL AND coalesce(group_key, '') = :group
),
locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM admitted))
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = 'pending', admission = NULL
WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'ready'));

-- name: hold_back_first_ready
-- ready -> pending
--
-- Changes jobs from ready to pending if they belong to :held_groups and have no admission. Searches
-- the first :limit ready jobs of the lane, where claims start to read. Claims skip such jobs. As
-- pending jobs they are in no ready span, so claims do not have to read them, and the group
-- scheduler can admit them.
--
-- A job that was admitted in the meantime stays ready.
WITH scanned AS MATERIALIZED (
    SELECT job.id, job.group_key, job.admission
    FROM (
        SELECT priority, first_id, last_id
        FROM ready_spans
        WHERE lane = :lane
        ORDER BY priority DESC, first_id
        LIMIT :limit
    ) AS span
    CROSS JOIN LATERAL (
        SELECT id, group_key, admission
        FROM jobs
        WHERE lane = :lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
            AND priority = span.priority
        ORDER BY id
    ) AS job
    LIMIT :limit
)
UPDATE jobs
SET state = 'pending'
WHERE lane = :lane
    AND id = ANY(ARRAY(
        SELECT id
        FROM scanned
        WHERE admission IS NULL AND {{row_is_held}}
        ORDER BY id
    ))
    AND admission IS NULL
    AND state = 'ready';

-- name: apply_rules_to_page
-- row: CheckedPage
-- ready -> pending, pending -> ready
--
-- Applies changed rules to the jobs of a lane, a few thousand at a time. The UPDATE computes the
-- new state from the row that it writes, because other brokers apply rules and admit jobs at the
-- same time.
WITH scanned AS MATERIALIZED (
    SELECT id, state, admission, coalesce({{is_held}}, false) AS needs_admission
    FROM jobs
    WHERE lane = :lane AND id > :after
    ORDER BY id
    LIMIT :limit
),
changed AS (
    UPDATE jobs
    SET state = {{due_state}}
    WHERE lane = :lane
        AND state IN ('ready', 'pending')
        AND id = ANY(ARRAY(
            SELECT id
            FROM scanned
            WHERE (state = 'ready' AND admission IS NULL AND needs_admission)
                OR (state = 'pending' AND NOT needs_admission)
            ORDER BY id
        ))
    RETURNING id, state, priority
),
{{covering_spans}}
SELECT (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last,
    (SELECT count(*) FROM changed WHERE state = 'ready') AS ready;

-- name: leases_of_queues
-- Reads the ids of the leased jobs of these queues, by the lease checks of their lanes, because
-- reading whole lanes may take long. A queue has 2^8 lanes (LANES_PER_QUEUE).
SELECT DISTINCT lease.id
FROM unnest(:queue_ids::int[]) AS queue (id)
CROSS JOIN LATERAL (
    SELECT lane, job_ids
    FROM lease_checks
    WHERE lane >= queue.id << 8 AND lane < (queue.id + 1) << 8
    OFFSET 0
) AS lease_check
CROSS JOIN LATERAL (
    SELECT id
    FROM jobs
    WHERE jobs.lane = lease_check.lane AND jobs.id = ANY(lease_check.job_ids) AND state = 'running'
    OFFSET 0
) AS lease;

-- name: assign_slots
-- running -> running (with a concurrency slot or an admission)
--
-- Makes the leases of these jobs count against the current limits. Leases may have been claimed
-- before a limit existed, or under a limit that no longer exists.
WITH locked AS MATERIALIZED (
    SELECT id, state
    {{lock_jobs}}
)
UPDATE jobs
SET uses_slot = :uses_slot,
    admission = CASE
        WHEN :limits_groups AND jobs.group_key IS NOT NULL THEN coalesce(jobs.admission, 1)
        ELSE jobs.admission
    END
WHERE lane = :lane
    AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'running'))
    AND (uses_slot IS DISTINCT FROM :uses_slot OR (:limits_groups AND group_key IS NOT NULL AND admission IS NULL));

-- name: revoke_above_limit
-- ready -> pending, running -> running (loses its admission when it ends)
--
-- Revokes the admissions of each group beyond a new :max_running_per_group. Admissions of running
-- jobs are kept first, then those of the oldest jobs.
--
--  * A running job beyond the limit continues and still counts. Its admission becomes 0, so that it
--    is not kept when the lease ends.
--  * A ready job beyond the limit becomes pending.
--  * A postponed job loses its admission if it is beyond the limit, or if its group is not strict.
WITH ranked AS MATERIALIZED (
    SELECT id, state, row_number() OVER (PARTITION BY group_key ORDER BY state = 'running' DESC, id) AS rank
    FROM jobs
    WHERE lane = :lane AND admission IS NOT NULL AND group_key IS NOT NULL
),
locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = :lane
        AND id = ANY(ARRAY(
            SELECT id
            FROM ranked
            WHERE rank > :max_running_per_group OR (state = 'scheduled' AND :max_running_per_group > 1)
        ))
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = CASE locked.state WHEN 'ready' THEN 'pending' ELSE locked.state END,
    admission = CASE locked.state WHEN 'running' THEN 0 END
FROM locked
WHERE jobs.lane = :lane AND jobs.id = ANY(ARRAY(SELECT id FROM locked)) AND jobs.id = locked.id;

-- name: lanes_with_pending
-- Finds the lanes with pending jobs. A loose index scan jumps from one lane to the next in the
-- index jobs_pending. If no job is pending, the scan takes one index probe.
WITH RECURSIVE visited AS (
    (SELECT lane FROM jobs WHERE pending_group IS NOT NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT jobs.lane
        FROM jobs
        WHERE pending_group IS NOT NULL AND jobs.lane > visited.lane
        ORDER BY jobs.lane
        LIMIT 1
    )
    FROM visited
    WHERE visited.lane IS NOT NULL
)
SELECT lane
FROM visited
WHERE lane IS NOT NULL;

-- name: pending_groups
-- Finds the first :limit groups with pending jobs from :start on, in the order of their names. A
-- loose index scan jumps from one group to the next in the index jobs_pending.
WITH RECURSIVE visited AS (
    (
        SELECT pending_group AS group_key, 1 AS hop
        FROM jobs
        WHERE lane = :lane AND pending_group >= :start
        ORDER BY pending_group
        LIMIT 1
    )
    UNION ALL
    SELECT next.group_key, visited.hop + 1
    FROM visited
    CROSS JOIN LATERAL (
        SELECT pending_group AS group_key
        FROM jobs
        WHERE lane = :lane AND pending_group > visited.group_key
        ORDER BY pending_group
        LIMIT 1
    ) AS next
    WHERE visited.hop < :limit
)
SELECT group_key
FROM visited;

-- name: all_cooldowns
-- row: CooldownRow
-- Reads all cool-downs. Every broker caches them, because few groups cool down at a time.
SELECT lane, group_key, until, probe_job_id
FROM group_cooldowns
ORDER BY lane, group_key;

-- name: cooldowns_of
-- row: CooldownRow
-- Reads the cool-downs of these groups, for a decision under the lane lock and for `explain`.
SELECT lane, group_key, until, probe_job_id
FROM group_cooldowns
WHERE lane = :lane AND group_key = ANY(:groups::text[]);

-- name: start_cooldown
-- Starts a cool-down, or extends it. A failure during a cool-down removes the half-open probe; the
-- group scheduler chooses a new probe when the cool-down ends.
INSERT INTO group_cooldowns (lane, group_key, until)
VALUES (:lane, :group, :until)
ON CONFLICT (lane, group_key) DO UPDATE
SET until = greatest(group_cooldowns.until, excluded.until), probe_job_id = NULL;

-- name: set_probe
-- Stores which job is the half-open probe of a group.
UPDATE group_cooldowns
SET probe_job_id = :job_id
WHERE lane = :lane AND group_key = :group;

-- name: clear_cooldowns
-- Ends the cool-downs of these groups.
DELETE FROM group_cooldowns
WHERE lane = :lane AND group_key = ANY(:groups::text[]);

-- name: probe_states
-- Reads the states of half-open probes. A probe that has finished has no row.
SELECT id, state
FROM jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]);
