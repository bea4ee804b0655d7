-- Dependencies between jobs.
--
-- A child is `blocked` while `awaits` contains a parent. Removing a parent twice changes nothing,
-- so an interrupted resolution is run again. The table `endings` has the finished parents whose
-- children are not resolved yet. Lock order: see leases.sql.

-- name: mark_parents
-- (any) -> (the same, awaited).  The row lock keeps the parent from finishing before its child is
-- stored.
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
-- The states and results of jobs that are no longer live.
SELECT id, state, result
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3
UNION ALL
SELECT id, 'dead', NULL
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: finished_parents
-- The states of jobs that are no longer live.
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
-- Finished parents with children to resolve. The statement that finished a parent wrote its row.
-- Mostly none.
SELECT lane, id, state
FROM endings
ORDER BY lane, id
LIMIT $1;

-- name: children_of
-- fills: DependentRow
-- Children with the final states of their parents. A finished parent that was resolved in the
-- meantime does not match, because the parent may have been replayed since: then it is live and can
-- have new children.
SELECT dependents.parent, dependents.child, endings.state
FROM dependents
JOIN endings ON endings.id = dependents.parent
WHERE dependents.lane = $1 AND dependents.parent = ANY($2::uuid[]) AND endings.lane = $1 AND endings.id = ANY($2::uuid[])
    AND dependents.parent <> ALL(ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[])))
ORDER BY dependents.parent, dependents.child
LIMIT $3;

-- name: unblock
-- fills: UnblockedRow
-- blocked -> ready | parked | scheduled | blocked (it waits for other parents too).
--
-- $4: the parents failed; then only children whose on_parent_failure is `run` are unblocked. run_at
-- of a child that becomes ready is now, because until now it waited for its parents and not for a
-- worker. $6 is the held groups: see jobs.sql.
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
-- Children that must be cancelled because these parents failed.
SELECT id
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND awaits && $3::uuid[] AND on_parent_failure IS DISTINCT FROM 'run';

-- name: delete_dependents
DELETE FROM dependents
USING unnest($2::uuid[], $3::uuid[]) AS told (parent, child)
WHERE dependents.lane = $1 AND dependents.parent = ANY($2::uuid[]) AND dependents.parent = told.parent AND dependents.child = told.child;

-- name: delete_finished_parents
-- Keeps a finished parent that still has dependents: then it was replayed in the meantime and has
-- finished again. A parent that is live is not finished, so its row is deleted.
DELETE FROM endings
WHERE lane = $1 AND id = ANY($2::uuid[]) AND (
    id <> ALL(ARRAY(SELECT parent FROM dependents WHERE dependents.lane = $1 AND dependents.parent = ANY($2::uuid[])))
    OR id = ANY(ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[])))
);
