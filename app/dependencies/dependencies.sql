-- Who waits for whom. A child is `blocked` while `awaits` names any parent; taking a parent out twice changes nothing, so a release that
-- is interrupted is simply done again. Order of locks: see leases.sql.

-- name: mark_parents
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

-- name: parent_results
-- fills: ParentResultRow
-- What jobs have come to that are no longer live, and what they gave.
SELECT id, state, result
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3
UNION ALL
SELECT id, 'dead', NULL
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: finished_parents
-- What has become of jobs that are no longer live.
SELECT id, state
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3
UNION ALL
SELECT id, 'dead'
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: add_dependents
INSERT INTO dependents (lane, parent, child)
SELECT $1, sent.parent, sent.child
FROM unnest($2::uuid[], $3::uuid[]) AS sent (parent, child)
ON CONFLICT DO NOTHING;

-- name: unresolved_parents
-- Those that others wait for, written down by the statement that ended them. Mostly none.
SELECT lane, id, state
FROM endings
ORDER BY lane, id
LIMIT $1;

-- name: children_of
-- fills: DependentRow
-- With the way in which their parents ended: an ending that has been seen to meanwhile concerns nobody, as the parent may live again since
-- (replayed), and have new children.
SELECT dependents.parent, dependents.child, endings.state
FROM dependents
JOIN endings ON endings.id = dependents.parent
WHERE dependents.lane = $1 AND dependents.parent = ANY($2::uuid[]) AND endings.lane = $1 AND endings.id = ANY($2::uuid[])
    AND dependents.parent <> ALL(ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[])))
ORDER BY dependents.parent, dependents.child
LIMIT $3;

-- name: unblock
-- fills: UnblockedRow
-- blocked -> ready | parked | scheduled, or blocked still, if it waits for others too. $4: the parents did not complete; then only those
-- that run all the same are let go. A child that is ready has waited for a worker since now: until then it waited for its parents.
-- `parks`: see jobs.sql.
WITH locked AS (
    SELECT id, ARRAY(SELECT one.id FROM unnest(awaits) AS one (id) WHERE one.id <> ALL($3::uuid[])) AS awaits
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND awaits && $3::uuid[] AND (NOT $4 OR on_parent_failure = 'run')
    ORDER BY id
    FOR UPDATE
),
released AS (
    UPDATE jobs
    SET awaits = locked.awaits,
        run_at = CASE WHEN cardinality(locked.awaits) > 0 THEN jobs.run_at ELSE greatest(jobs.run_at, $5) END,
        state = CASE
            WHEN cardinality(locked.awaits) > 0 THEN 'blocked'
            WHEN jobs.run_at > $5 THEN 'scheduled'
            WHEN coalesce(jobs.group_key, '') = ANY($6::text[]) OR (jobs.group_key IS NOT NULL AND '*' = ANY($6::text[])) THEN 'parked'
            ELSE 'ready'
        END,
        state_reason = CASE WHEN cardinality(locked.awaits) > 0 THEN jobs.state_reason END
    FROM locked
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.state, jobs.job_type, jobs.group_key, jobs.run_at
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

-- name: to_be_cancelled
-- Children that are to be cancelled with these parents.
SELECT id
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND awaits && $3::uuid[] AND on_parent_failure IS DISTINCT FROM 'run';

-- name: delete_dependents
DELETE FROM dependents
USING unnest($2::uuid[], $3::uuid[]) AS told (parent, child)
WHERE dependents.lane = $1 AND dependents.parent = ANY($2::uuid[]) AND dependents.parent = told.parent AND dependents.child = told.child;

-- name: delete_finished_parents
-- Not while somebody has not heard of it: then it is another ending, of a parent that was replayed meanwhile. One that lives has not ended.
DELETE FROM endings
WHERE lane = $1 AND id = ANY($2::uuid[]) AND (
    id <> ALL(ARRAY(SELECT parent FROM dependents WHERE dependents.lane = $1 AND dependents.parent = ANY($2::uuid[])))
    OR id = ANY(ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[])))
);
