-- Concurrency limits of queues and groups.
--
-- A job that waits for an admission is pending (state `parked`). An admitted job has a number in
-- `turn` until it has ended or is put off. Admissions are made, revoked and counted under the lane
-- lock, so that no two brokers decide at once. Lock order: see leases.sql.

-- name: running_slots
-- Counts the leases that use a concurrency slot (max_running).
SELECT count(*)
FROM jobs
WHERE lane = $1 AND slot;

-- name: rate_limit_usage
-- fills: UsageRow
-- Sums the rate-limit usage since $2.
SELECT coalesce(sum(n), 0)::bigint AS n, min(at) AS first_at, max(at) AS last_at
FROM passes
WHERE lane = $1 AND at >= $2;

-- name: record_usage
-- Adds $3 jobs to the slice that starts at $2, and deletes usage older than $4. A slice is one row.
WITH forgotten AS (
    DELETE FROM passes
    WHERE lane = $1 AND at < $4
),
added AS (
    UPDATE passes
    SET n = n + $3
    WHERE lane = $1 AND at = $2
    RETURNING at
)
INSERT INTO passes (lane, at, n)
SELECT $1, $2, $3
WHERE NOT EXISTS (SELECT FROM added);

-- name: group_usage
-- fills: GroupUsageRow
-- Per group: how many jobs are admitted, how many of them no worker has claimed yet, and the first
-- of these. In a strict group ($3) the first may also be the running job.
SELECT coalesce(group_key, '') AS group_key, count(*) AS n, count(*) FILTER (WHERE state = 'ready') AS ready,
    (array_agg(id ORDER BY id) FILTER (WHERE state = 'ready' OR ($3 AND state = 'running')))[1] AS first
FROM jobs
WHERE lane = $1 AND turn IS NOT NULL AND coalesce(group_key, '') = ANY($2::text[])
GROUP BY coalesce(group_key, '');

-- name: next_waiting
-- fills: WaitingRow
-- Per group: up to its limit, the oldest jobs first. At most $4 rows in all, because the caller
-- holds the lane lock.
SELECT waiting.id, asked.group_key, waiting.priority
FROM unnest($2::text[], $3::int[]) AS asked (group_key, most)
CROSS JOIN LATERAL (
    SELECT id, priority
    FROM jobs
    WHERE lane = $1 AND state = 'parked' AND coalesce(jobs.group_key, '') = asked.group_key
    ORDER BY id
    LIMIT asked.most
) AS waiting
LIMIT $4;

-- name: last_passes
-- fills: PassRow
-- For a fair queue, per group and priority: the last pass of the group, and the pass that is being
-- served.
SELECT asked.group_key, asked.priority,
    (
        SELECT max(turn)
        FROM jobs
        WHERE lane = $1 AND turn IS NOT NULL AND coalesce(jobs.group_key, '') = asked.group_key AND jobs.priority = asked.priority
    ) AS last,
    (SELECT min(turn) FROM jobs WHERE lane = $1 AND state = 'ready' AND turn IS NOT NULL AND jobs.priority = asked.priority) AS next
FROM unnest($2::text[], $3::smallint[]) AS asked (group_key, priority);

-- name: admit
-- pending -> ready (admitted)
WITH locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = 'ready', turn = sent.turn
FROM unnest($2::uuid[], $3::bigint[]) AS sent (id, turn)
WHERE jobs.lane = $1 AND jobs.id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'parked')) AND jobs.id = sent.id
RETURNING jobs.job_type;

-- name: revoke_admissions
-- ready -> pending
--
-- The group cools down. Jobs that run go on. The rows are found first and locked second: in one
-- step the planner may read the whole lane, because that has the order of the ids.
WITH found AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND turn IS NOT NULL AND coalesce(group_key, '') = $2
),
locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM found))
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = 'parked', turn = NULL
WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'ready'));

-- name: hold_back_head
-- ready -> pending
--
-- Jobs of held groups ($2: see jobs.sql) at the head of the lane. Claims skip them anyway. As
-- pending jobs they are not in the index of ready jobs, so they cost claims nothing, and they can
-- be admitted. The first few thousand ($3) are enough.
WITH head AS MATERIALIZED (
    SELECT id, group_key, turn
    FROM jobs
    WHERE lane = $1 AND state = 'ready'
    ORDER BY priority DESC, id
    LIMIT $3
)
UPDATE jobs
SET state = CASE WHEN turn IS NULL THEN 'parked' ELSE state END
WHERE lane = $1
    AND id = ANY(ARRAY(
        SELECT id
        FROM head
        WHERE turn IS NULL AND (coalesce(group_key, '') = ANY($2::text[]) OR (group_key IS NOT NULL AND '*' = ANY($2::text[])))
        ORDER BY id
    ))
    AND state IN ('ready', 'parked');

-- name: apply_rules_to_page
-- fills: CheckedPage
-- ready -> pending, pending -> ready
--
-- Applies changed rules to the jobs of a lane, a few thousand at a time. Held groups ($3): see
-- jobs.sql. The new state depends on the row as it is when it is written: several brokers apply
-- rules at once, and jobs are admitted in the meantime.
WITH page AS MATERIALIZED (
    SELECT id, state, turn,
        coalesce(coalesce(group_key, '') = ANY($3::text[]) OR (group_key IS NOT NULL AND '*' = ANY($3::text[])), false) AS waits
    FROM jobs
    WHERE lane = $1 AND id > $2
    ORDER BY id
    LIMIT $4
),
sorted AS (
    UPDATE jobs
    SET state = CASE
            WHEN turn IS NULL AND (coalesce(group_key, '') = ANY($3::text[]) OR (group_key IS NOT NULL AND '*' = ANY($3::text[]))) THEN 'parked'
            ELSE 'ready'
        END
    WHERE lane = $1 AND state IN ('ready', 'parked')
        AND id = ANY(ARRAY(
            SELECT id
            FROM page
            WHERE (state = 'ready' AND turn IS NULL AND waits) OR (state = 'parked' AND NOT waits)
            ORDER BY id
        ))
    RETURNING state, job_type
)
SELECT (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
    ARRAY(SELECT DISTINCT job_type FROM sorted WHERE state = 'ready') AS ready;

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
SET slot = $3, turn = CASE WHEN $4 AND jobs.group_key IS NOT NULL THEN coalesce(jobs.turn, 1) ELSE jobs.turn END
WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = 'running'))
    AND (slot IS DISTINCT FROM $3 OR ($4 AND group_key IS NOT NULL AND turn IS NULL));

-- name: revoke_surplus
-- ready -> pending, running -> running (loses its admission when it ends)
--
-- More jobs may be admitted than a new limit ($2) allows. Running jobs go on and are counted, with
-- admission number 0 from now on. Jobs that have not started become pending again. In a group that
-- is not strict, a job that is put off does not keep its admission.
WITH placed AS MATERIALIZED (
    SELECT id, state, row_number() OVER (PARTITION BY group_key ORDER BY state = 'running' DESC, id) AS place
    FROM jobs
    WHERE lane = $1 AND turn IS NOT NULL AND group_key IS NOT NULL
),
locked AS MATERIALIZED (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM placed WHERE place > $2 OR (state = 'scheduled' AND $2 > 1)))
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET state = CASE locked.state WHEN 'ready' THEN 'parked' ELSE locked.state END, turn = CASE locked.state WHEN 'running' THEN 0 END
FROM locked
WHERE jobs.lane = $1 AND jobs.id = ANY(ARRAY(SELECT id FROM locked)) AND jobs.id = locked.id;

-- name: lanes_with_pending
-- Loose index scan: hops from one lane to the next in jobs_parked. One index probe if no job is
-- pending.
WITH RECURSIVE hops AS (
    (SELECT lane FROM jobs WHERE state = 'parked' ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT jobs.lane FROM jobs WHERE state = 'parked' AND jobs.lane > hops.lane ORDER BY jobs.lane LIMIT 1)
    FROM hops
    WHERE hops.lane IS NOT NULL
)
SELECT lane
FROM hops
WHERE lane IS NOT NULL;

-- name: waiting_groups
-- Groups with pending jobs, in order, from $2 on. Loose index scan: hops from group to group in
-- jobs_parked.
WITH RECURSIVE hops AS (
    (
        SELECT coalesce(group_key, '') AS group_key, 1 AS hop
        FROM jobs
        WHERE lane = $1 AND state = 'parked' AND coalesce(group_key, '') >= $2
        ORDER BY coalesce(group_key, '')
        LIMIT 1
    )
    UNION ALL
    SELECT next.group_key, hops.hop + 1
    FROM hops
    CROSS JOIN LATERAL (
        SELECT coalesce(jobs.group_key, '') AS group_key
        FROM jobs
        WHERE lane = $1 AND state = 'parked' AND coalesce(jobs.group_key, '') > hops.group_key
        ORDER BY coalesce(jobs.group_key, '')
        LIMIT 1
    ) AS next
    WHERE hops.hop < $3
)
SELECT group_key
FROM hops;

-- name: all_cooldowns
-- fills: CooldownRow
-- Every broker caches them: few groups cool down at a time.
SELECT lane, group_key, until, probe
FROM rests
ORDER BY lane, group_key;

-- name: cooldowns_of
-- fills: CooldownRow
SELECT lane, group_key, until, probe
FROM rests
WHERE lane = $1 AND group_key = ANY($2::text[]);

-- name: start_cooldown
-- A cool-down that is prolonged needs a new half-open probe.
INSERT INTO rests (lane, group_key, until)
VALUES ($1, $2, $3)
ON CONFLICT (lane, group_key) DO UPDATE
SET until = greatest(rests.until, excluded.until), probe = NULL;

-- name: set_probe
UPDATE rests
SET probe = $3
WHERE lane = $1 AND group_key = $2;

-- name: clear_cooldowns
DELETE FROM rests
WHERE lane = $1 AND group_key = ANY($2::text[]);

-- name: probe_states
-- States of the half-open probes that have not finished.
SELECT id, state
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]);
