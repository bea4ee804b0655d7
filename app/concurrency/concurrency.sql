-- Whose turn it is. A job that has to wait is `parked`; one that has its turn bears a number in `turn`, until it has ended or is put off.
-- Turns are given, taken back and counted with the gate of their lane held, so that no two decide at once. Order of locks: see leases.sql.

-- name: running_slots
-- Leases that count against max_running.
SELECT count(*)
FROM jobs
WHERE lane = $1 AND slot;

-- name: rate_limit_usage
-- fills: UsageRow
-- What the rate has let through since $2.
SELECT coalesce(sum(n), 0)::bigint AS n, min(at) AS first_at, max(at) AS last_at
FROM passes
WHERE lane = $1 AND at >= $2;

-- name: record_usage
-- Writes down what was let through now, and forgets what is older than the rate's span. What falls into one slice of time is one row.
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
-- By group: how many have their turn, how many of them nobody has claimed yet; and the first of these, or in a strict group ($3) that runs.
SELECT coalesce(group_key, '') AS group_key, count(*) AS n, count(*) FILTER (WHERE state = 'ready') AS ready,
    (array_agg(id ORDER BY id) FILTER (WHERE state = 'ready' OR ($3 AND state = 'running')))[1] AS first
FROM jobs
WHERE lane = $1 AND turn IS NOT NULL AND coalesce(group_key, '') = ANY($2::text[])
GROUP BY coalesce(group_key, '');

-- name: next_waiting
-- fills: WaitingRow
-- By group: as many as asked for, the oldest first; and no more than $4 in all, as the gate is held.
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
-- Of a fair queue, by group and priority: the last turn that the group has, and the turn that is next for everybody.
SELECT asked.group_key, asked.priority,
    (
        SELECT max(turn)
        FROM jobs
        WHERE lane = $1 AND turn IS NOT NULL AND coalesce(jobs.group_key, '') = asked.group_key AND jobs.priority = asked.priority
    ) AS last,
    (SELECT min(turn) FROM jobs WHERE lane = $1 AND state = 'ready' AND turn IS NOT NULL AND jobs.priority = asked.priority) AS next
FROM unnest($2::text[], $3::smallint[]) AS asked (group_key, priority);

-- name: admit
-- parked -> ready.
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
-- ready -> parked.  The group has come to rest; who runs may go on.
-- Found first and locked second: in one step the planner may read the whole lane, as that has the order of the ids.
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
-- ready -> parked, of those that should wait for their turn ($2: see `parks` in jobs.sql).  Claims pass over them anyway; out of the index
-- they cost nothing, and may have their turn. The first some thousand are enough.
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
-- ready -> parked, parked -> ready: after the rules of a queue have changed, some thousand of its jobs at a time. `parks`: see jobs.sql.
-- What a row becomes is decided by the row as it is when it is written: several brokers sort at once, and turns are given meanwhile.
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
-- All leases there are, and of them those of these queues: not the whole lanes, which may be long.
SELECT id
FROM jobs
WHERE lease_expires_at IS NOT NULL AND lane / 256 = ANY($1::int[]);

-- name: count_running
-- running -> running (counted).  For leases that were given out before there was a limit.
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
-- ready -> parked, running -> running (will not keep its turn).  More may have a turn than a new limit ($2) allows. Who runs goes on and
-- is counted, but bears 0 from now on; who has not begun waits like others, and where order is not strict nobody holds a place while put off.
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
-- By hopping from one to the next in jobs_parked: a single probe where nobody waits for a turn.
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
-- Groups in which somebody waits, in their order from $2 on, by hopping from one to the next in jobs_parked.
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
-- The cache of every process reads them: groups at rest are few.
SELECT lane, group_key, until, probe
FROM rests
ORDER BY lane, group_key;

-- name: cooldowns_of
-- fills: CooldownRow
SELECT lane, group_key, until, probe
FROM rests
WHERE lane = $1 AND group_key = ANY($2::text[]);

-- name: start_cooldown
-- A rest that is prolonged needs a new probe.
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
-- What has become of the probes that are still live.
SELECT id, state
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]);
