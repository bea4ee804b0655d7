-- Dependencies between jobs.
--
-- A child is `blocked` while `waiting_for` contains a parent. Removing a parent twice changes
-- nothing, so an interrupted resolution is run again. The table `finished_parents` has the finished
-- parents whose children are not resolved yet. Lock order: see leases.sql.

-- name: mark_parents
-- (any) -> (the same, with dependents).  The row lock keeps the parent from finishing before its
-- child is stored.
WITH locked AS (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[])
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET has_dependents = true
WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked))
RETURNING id;

-- name: parent_results
-- row: ParentResultRow
-- The states and results of jobs that are no longer live.
SELECT id, state, result
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3
UNION ALL
SELECT id, 'dead', NULL
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: parent_states
-- The states of jobs that are no longer live.
SELECT id, state
FROM finished_jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND keep_until > $3
UNION ALL
SELECT id, 'dead'
FROM dead_letters
WHERE lane = $1 AND id = ANY($2::uuid[]);

-- name: add_dependents
INSERT INTO dependents (lane, parent_id, child_id)
SELECT $1, input.parent_id, input.child_id
FROM unnest($2::uuid[], $3::uuid[]) AS input (parent_id, child_id)
ON CONFLICT DO NOTHING;

-- name: unresolved_parents
-- Finished parents with children to resolve. The statement that finished a parent wrote its row.
-- Mostly none.
SELECT lane, id, state
FROM finished_parents
ORDER BY lane, id
LIMIT $1;

-- name: children_of
-- row: DependentRow
-- Children with the final states of their parents. A finished parent that was resolved in the
-- meantime does not match, because the parent may have been replayed since: then it is live and can
-- have new children.
SELECT dependents.parent_id, dependents.child_id, finished_parents.state
FROM dependents
JOIN finished_parents ON finished_parents.id = dependents.parent_id
WHERE dependents.lane = $1 AND dependents.parent_id = ANY($2::uuid[]) AND finished_parents.lane = $1
    AND finished_parents.id = ANY($2::uuid[])
    AND dependents.parent_id <> ALL(ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[])))
ORDER BY dependents.parent_id, dependents.child_id
LIMIT $3;

-- name: unblock
-- row: MovedJobRow
-- blocked -> ready | pending | scheduled | blocked (it waits for other parents too).
--
-- $4: the parents failed; then only children whose on_parent_failure is `run` are unblocked. run_at
-- of a child that becomes ready is now, because until now it waited for its parents and not for a
-- worker. $6 is the held groups: see jobs.sql.
WITH locked AS (
    SELECT id, ARRAY(SELECT parent.id FROM unnest(waiting_for) AS parent (id) WHERE parent.id <> ALL($3::uuid[])) AS waiting_for
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND waiting_for && $3::uuid[] AND (NOT $4 OR on_parent_failure = 'run')
    ORDER BY id
    FOR UPDATE
),
unblocked AS (
    UPDATE jobs
    SET waiting_for = locked.waiting_for,
        run_at = CASE WHEN cardinality(locked.waiting_for) > 0 THEN jobs.run_at ELSE greatest(jobs.run_at, $5) END,
        state = CASE
            WHEN cardinality(locked.waiting_for) > 0 THEN 'blocked'
            WHEN jobs.run_at > $5 THEN 'scheduled'
            WHEN coalesce(jobs.group_key, '') = ANY($6::text[]) OR (jobs.group_key IS NOT NULL AND '*' = ANY($6::text[])) THEN 'pending'
            ELSE 'ready'
        END,
        state_reason = CASE WHEN cardinality(locked.waiting_for) > 0 THEN jobs.state_reason END
    FROM locked
    WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[]) AND jobs.id = locked.id
    RETURNING jobs.id, jobs.state, jobs.job_type, jobs.group_key, jobs.run_at, jobs.has_dependents, jobs.admission
),
counted AS (
    INSERT INTO stat_deltas (lane, blocked, ready, scheduled)
    SELECT $1, -count(*), count(*) FILTER (WHERE state IN ('ready', 'pending')), count(*) FILTER (WHERE state = 'scheduled')
    FROM unblocked
    WHERE state <> 'blocked'
    HAVING count(*) > 0
)
SELECT id, state, job_type, group_key, run_at, has_dependents, admission
FROM unblocked;

-- name: to_be_cancelled
-- Children that must be cancelled because these parents failed.
SELECT id
FROM jobs
WHERE lane = $1 AND id = ANY($2::uuid[]) AND waiting_for && $3::uuid[] AND on_parent_failure IS DISTINCT FROM 'run';

-- name: delete_dependents
DELETE FROM dependents
USING unnest($2::uuid[], $3::uuid[]) AS input (parent_id, child_id)
WHERE dependents.lane = $1 AND dependents.parent_id = ANY($2::uuid[]) AND dependents.parent_id = input.parent_id
    AND dependents.child_id = input.child_id;

-- name: delete_finished_parents
-- Keeps a finished parent that still has dependents: then it was replayed in the meantime and has
-- finished again. A parent that is live is not finished, so its row is deleted.
DELETE FROM finished_parents
WHERE lane = $1 AND id = ANY($2::uuid[]) AND (
    id <> ALL(ARRAY(SELECT parent_id FROM dependents WHERE dependents.lane = $1 AND dependents.parent_id = ANY($2::uuid[])))
    OR id = ANY(ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = $1 AND jobs.id = ANY($2::uuid[])))
);
