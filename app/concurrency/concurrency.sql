-- Concurrency limits of queues and groups.
--
-- A job that waits for an admission is pending. An admitted job has a number in `admission` until
-- it has ended or is put off. Admissions are made, revoked and counted under the lane lock, so that
-- no two brokers decide at once. Lock order: see leases.sql.

-- name: running_slots
-- Counts the leases that use a concurrency slot (max_running).
SELECT count(*)
FROM jobs
WHERE lane = $1 AND uses_slot;

-- name: rate_limit_usage
-- row: UsageRow
-- Sums the rate-limit usage since $2.
SELECT coalesce(sum(count), 0)::bigint AS used, min(at) AS first_at, max(at) AS last_at
FROM rate_limit_usage
WHERE lane = $1 AND at >= $2;

-- name: record_usage
-- Adds $3 jobs to the slice that starts at $2, and deletes usage older than $4. A slice is one row.
WITH deleted AS (
    DELETE FROM rate_limit_usage
    WHERE lane = $1 AND at < $4
),
updated AS (
    UPDATE rate_limit_usage
    SET count = count + $3
    WHERE lane = $1 AND at = $2
    RETURNING at
)
INSERT INTO rate_limit_usage (lane, at, count)
SELECT $1, $2, $3
WHERE NOT EXISTS (SELECT FROM updated);

-- name: group_usage
-- row: GroupUsageRow
-- Per group: how many jobs are admitted, how many of them no worker has claimed yet, and the first
-- of these. In a strict group ($3) the first may also be the running job.
SELECT coalesce(group_key, '') AS group_key, count(*) AS admitted, count(*) FILTER (WHERE state = 'ready') AS ready,
    (array_agg(id ORDER BY id) FILTER (WHERE state = 'ready' OR ($3 AND state = 'running')))[1] AS first
FROM jobs
WHERE lane = $1 AND admission IS NOT NULL AND coalesce(group_key, '') = ANY($2::text[])
GROUP BY coalesce(group_key, '');

-- name: next_waiting
-- row: WaitingRow
-- Per group: up to its limit, the oldest jobs first. At most $4 rows in all, because the caller
-- holds the lane lock.
SELECT waiting.id, input.group_key, waiting.priority
FROM unnest($2::text[], $3::int[]) AS input (group_key, max_jobs)
CROSS JOIN LATERAL (
    SELECT id, priority
    FROM jobs
    WHERE lane = $1 AND state = 'pending' AND coalesce(jobs.group_key, '') = input.group_key
    ORDER BY id
    LIMIT input.max_jobs
) AS waiting
LIMIT $4;

-- name: last_passes
-- row: PassRow
-- For a fair queue, per group and priority: the last pass of the group, and the pass that is being
-- served.
SELECT input.group_key, input.priority,
    (
        SELECT max(admission)
        FROM jobs
        WHERE lane = $1 AND admission IS NOT NULL AND coalesce(jobs.group_key, '') = input.group_key AND jobs.priority = input.priority
    ) AS last,
    (SELECT min(admission) FROM jobs WHERE lane = $1 AND state = 'ready' AND admission IS NOT NULL AND jobs.priority = input.priority) AS next
FROM unnest($2::text[], $3::smallint[]) AS input (group_key, priority);

-- name: admit
-- row: MovedJobRow
-- pending -> ready (admitted)
WITH locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = 'ready', admission = input.admission
FROM unnest($2::uuid[], $3::bigint[]) AS input (id, admission)
WHERE jobs.lane = $1 AND jobs.id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'pending')) AND jobs.id = input.id
RETURNING jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission;

-- name: revoke_admissions
-- ready -> pending
--
-- The group cools down. Jobs that run go on. The rows are found first and locked second: in one
-- step the planner may read the whole lane, because that has the order of the ids.
WITH admitted AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND admission IS NOT NULL AND coalesce(group_key, '') = $2
),
locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM admitted))
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = 'pending', admission = NULL
WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'ready'));

-- name: hold_back_head
-- ready -> pending
--
-- Jobs of held groups ($2: see jobs.sql) at the head of the lane. Claims skip them anyway. As
-- pending jobs they are not in the index of ready jobs, so they cost claims nothing, and they can
-- be admitted. The first few thousand ($3) are enough.
WITH head AS MATERIALIZED (
    SELECT id, group_key, admission
    FROM jobs
    WHERE lane = $1 AND state = 'ready'
    ORDER BY priority DESC, id
    LIMIT $3
)
UPDATE jobs
SET state = CASE WHEN admission IS NULL THEN 'pending' ELSE state END
WHERE lane = $1
    AND id = ANY(ARRAY(
        SELECT id
        FROM head
        WHERE admission IS NULL AND (coalesce(group_key, '') = ANY($2::text[]) OR (group_key IS NOT NULL AND '*' = ANY($2::text[])))
        ORDER BY id
    ))
    AND state IN ('ready', 'pending');

-- name: apply_rules_to_page
-- row: CheckedPage
-- ready -> pending, pending -> ready
--
-- Applies changed rules to the jobs of a lane, a few thousand at a time. Held groups ($3): see
-- jobs.sql. The new state depends on the row as it is when it is written: several brokers apply
-- rules at once, and jobs are admitted in the meantime.
WITH page AS MATERIALIZED (
    SELECT id, state, admission,
        coalesce(coalesce(group_key, '') = ANY($3::text[]) OR (group_key IS NOT NULL AND '*' = ANY($3::text[])), false) AS waits
    FROM jobs
    WHERE lane = $1 AND id > $2
    ORDER BY id
    LIMIT $4
),
moved AS (
    UPDATE jobs
    SET state = CASE
            WHEN admission IS NULL AND (coalesce(group_key, '') = ANY($3::text[]) OR (group_key IS NOT NULL AND '*' = ANY($3::text[]))) THEN 'pending'
            ELSE 'ready'
        END
    WHERE lane = $1 AND state IN ('ready', 'pending')
        AND id = ANY(ARRAY(
            SELECT id
            FROM page
            WHERE (state = 'ready' AND admission IS NULL AND waits) OR (state = 'pending' AND NOT waits)
            ORDER BY id
        ))
    RETURNING state, job_type
)
SELECT (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
    ARRAY(SELECT DISTINCT job_type FROM moved WHERE state = 'ready') AS ready;

-- name: leases_of_queues
-- Reads the index of all leases and filters by queue, because whole lanes may be long.
SELECT id
FROM jobs
WHERE lease_expires_at IS NOT NULL AND lane / 256 = ANY($1::int[]);

-- name: count_running
-- running -> running (counted)
--
-- For jobs that were claimed before there was a limit.
WITH locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET uses_slot = $3, admission = CASE WHEN $4 AND jobs.group_key IS NOT NULL THEN coalesce(jobs.admission, 1) ELSE jobs.admission END
WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'running'))
    AND (uses_slot IS DISTINCT FROM $3 OR ($4 AND group_key IS NOT NULL AND admission IS NULL));

-- name: revoke_surplus
-- ready -> pending, running -> running (loses its admission when it ends)
--
-- More jobs may be admitted than a new limit ($2) allows. Running jobs go on and are counted, with
-- admission number 0 from now on. Jobs that have not started become pending again. In a group that
-- is not strict, a job that is put off does not keep its admission.
WITH placed AS MATERIALIZED (
    SELECT id, state, row_number() OVER (PARTITION BY group_key ORDER BY state = 'running' DESC, id) AS place
    FROM jobs
    WHERE lane = $1 AND admission IS NOT NULL AND group_key IS NOT NULL
),
locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM placed WHERE place > $2 OR (state = 'scheduled' AND $2 > 1)))
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = CASE locked.state WHEN 'ready' THEN 'pending' ELSE locked.state END, admission = CASE locked.state WHEN 'running' THEN 0 END
FROM locked
WHERE jobs.lane = $1 AND jobs.id = ANY(ARRAY(SELECT id FROM locked)) AND jobs.id = locked.id;

-- name: lanes_with_pending
-- Loose index scan: hops from one lane to the next in jobs_pending. One index probe if no job is
-- pending.
WITH RECURSIVE hops AS (
    (SELECT lane FROM jobs WHERE state = 'pending' ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT jobs.lane FROM jobs WHERE state = 'pending' AND jobs.lane > hops.lane ORDER BY jobs.lane LIMIT 1)
    FROM hops
    WHERE hops.lane IS NOT NULL
)
SELECT lane
FROM hops
WHERE lane IS NOT NULL;

-- name: waiting_groups
-- Groups with pending jobs, in order, from $2 on. Loose index scan: hops from group to group in
-- jobs_pending.
WITH RECURSIVE hops AS (
    (
        SELECT coalesce(group_key, '') AS group_key, 1 AS hop
        FROM jobs
        WHERE lane = $1 AND state = 'pending' AND coalesce(group_key, '') >= $2
        ORDER BY coalesce(group_key, '')
        LIMIT 1
    )
    UNION ALL
    SELECT next.group_key, hops.hop + 1
    FROM hops
    CROSS JOIN LATERAL (
        SELECT coalesce(jobs.group_key, '') AS group_key
        FROM jobs
        WHERE lane = $1 AND state = 'pending' AND coalesce(jobs.group_key, '') > hops.group_key
        ORDER BY coalesce(jobs.group_key, '')
        LIMIT 1
    ) AS next
    WHERE hops.hop < $3
)
SELECT group_key
FROM hops;

-- name: all_cooldowns
-- row: CooldownRow
-- Every broker caches them: few groups cool down at a time.
SELECT lane, group_key, until, probe_job_id
FROM group_cooldowns
ORDER BY lane, group_key;

-- name: cooldowns_of
-- row: CooldownRow
SELECT lane, group_key, until, probe_job_id
FROM group_cooldowns
WHERE lane = $1 AND group_key = ANY($2::text[]);

-- name: start_cooldown
-- A cool-down that is prolonged needs a new half-open probe.
INSERT INTO group_cooldowns (lane, group_key, until)
VALUES ($1, $2, $3)
ON CONFLICT (lane, group_key) DO UPDATE
SET until = greatest(group_cooldowns.until, excluded.until), probe_job_id = NULL;

-- name: set_probe
UPDATE group_cooldowns
SET probe_job_id = $3
WHERE lane = $1 AND group_key = $2;

-- name: clear_cooldowns
DELETE FROM group_cooldowns
WHERE lane = $1 AND group_key = ANY($2::text[]);

-- name: probe_states
-- States of the half-open probes that have not finished.
SELECT id, state
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]);
