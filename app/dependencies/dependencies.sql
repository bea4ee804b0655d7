-- Who waits for whom. A child is `blocked` while `awaits` names any parent; taking a parent out twice changes nothing, so a release that
-- is interrupted is simply done again. Order of locks: see leases.sql.

-- name: await_parents
-- (any) -> (the same, waited for).  The lock makes sure that the parent has not ended when its child is stored.
WITH locked AS (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET awaited = true
WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked))
RETURNING id;

-- name: ended_parents
-- What has become of jobs that are no longer live.
SELECT id, state
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > now()
UNION ALL
SELECT id, 'dead'
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: add_dependents
INSERT INTO dependents (lane, parent, child)
SELECT $1, sent.parent, sent.child
FROM unnest($2::uuid[], $3::uuid[]) AS sent (parent, child)
ON CONFLICT DO NOTHING;

-- name: ended_jobs
-- Those that others wait for, written down by the statement that ended them. Mostly none.
SELECT lane, id, state
FROM endings
ORDER BY lane, id
LIMIT $1;

-- name: children_of
-- Nobody, if that ending has been seen to meanwhile: the parent may live again since (replayed), and have new children.
SELECT child
FROM dependents
WHERE lane = $1 AND parent = $2 AND EXISTS (SELECT FROM endings WHERE endings.lane = $1 AND endings.id = $2 AND endings.state = $3)
ORDER BY child
LIMIT $4;

-- name: release
-- fills: ReleasedRow
-- blocked -> ready | parked | scheduled, or blocked still, if it waits for others too. $4: the parent did not complete; then only those
-- that run all the same are let go. `parks`: see jobs.sql.
WITH locked AS (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND $3 = ANY(awaits) AND (NOT $4 OR on_parent_failure = 'run')
    ORDER BY id
    FOR UPDATE
),
released AS (
    UPDATE jobs
    SET awaits = array_remove(awaits, $3),
        state = CASE
            WHEN cardinality(array_remove(awaits, $3)) > 0 THEN 'blocked'
            WHEN run_at > $5 THEN 'scheduled'
            WHEN coalesce(group_key, '') = ANY($6::text[]) OR (group_key IS NOT NULL AND '*' = ANY($6::text[])) THEN 'parked'
            ELSE 'ready'
        END,
        state_reason = CASE WHEN cardinality(array_remove(awaits, $3)) > 0 THEN state_reason END
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked))
    RETURNING state, job_type, group_key, run_at
),
counted AS (
    INSERT INTO stat_deltas (lane, blocked, ready, scheduled)
    SELECT $1, -count(*), count(*) FILTER (WHERE state IN ('ready', 'parked')), count(*) FILTER (WHERE state = 'scheduled')
    FROM released
    WHERE state <> 'blocked'
    HAVING count(*) > 0
)
SELECT state, job_type, group_key, run_at
FROM released;

-- name: doomed
-- Children that are to be cancelled with this parent.
SELECT id
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND $3 = ANY(awaits) AND on_parent_failure IS DISTINCT FROM 'run';

-- name: forget_dependents
DELETE FROM dependents
WHERE lane = $1 AND parent = $2 AND child = ANY($3::uuid[]);

-- name: forget_ending
-- Not while somebody has not heard of it: then it is another ending of a parent that was replayed, or a child came meanwhile.
DELETE FROM endings
WHERE lane = $1 AND id = $2 AND NOT EXISTS (SELECT FROM dependents WHERE dependents.lane = $1 AND dependents.parent = $2);
