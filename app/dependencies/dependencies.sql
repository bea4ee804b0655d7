-- Dependencies between jobs.
--
-- A child is `blocked` while `waiting_for` contains a parent. The dependency resolver removes
-- finished parents from it. Removing a parent twice changes nothing, so an interrupted resolution
-- can simply run again. The table `finished_parents` has the finished parents whose children are
-- not resolved yet. Lock order: see leases.sql.

-- fragment: live_parents
-- The ids of the jobs among :parents that are live.
ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = :lane AND jobs.id = ANY(:parents::uuid[]))

-- name: mark_parents
-- (any) -> (the same, with dependents). Returns the ids of the live jobs. The row lock keeps a
-- parent from finishing before its child is stored.
WITH locked AS (
    SELECT id
    FROM jobs
    WHERE lane = :lane AND id = ANY(:ids::uuid[])
    ORDER BY id
    FOR UPDATE
)
UPDATE jobs
SET has_dependents = true
WHERE lane = :lane AND id = ANY(ARRAY(SELECT id FROM locked))
RETURNING id;

-- name: parent_sizes
-- row: ParentSize
-- The states of jobs that are no longer live, and the sizes of their results.
SELECT id, state, octet_length(result) AS result_bytes
FROM finished_jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND keep_until > :retention_now
UNION ALL
SELECT id, 'dead', NULL
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: results
-- The results of completed jobs.
SELECT id, result
FROM finished_jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND keep_until > :retention_now;

-- name: parent_states
-- The states of jobs that are no longer live.
SELECT id, state
FROM finished_jobs
WHERE lane = :lane AND id = ANY(:ids::uuid[]) AND keep_until > :retention_now
UNION ALL
SELECT id, 'dead'
FROM dead_letters
WHERE lane = :lane AND id = ANY(:ids::uuid[]);

-- name: add_dependents
INSERT INTO dependents (lane, parent_id, child_id)
SELECT :lane, input.parent_id, input.child_id
FROM unnest(:parents::uuid[], :children::uuid[]) AS input (parent_id, child_id)
ON CONFLICT DO NOTHING;

-- name: unresolved_parents
-- Finished parents whose children are not resolved yet, mostly none. The statement that finished a
-- parent has written its row.
SELECT lane, id, state
FROM finished_parents
ORDER BY lane, id
LIMIT :limit;

-- name: children_of
-- row: DependentRow
-- Children with the final states of their parents. A parent that another broker has resolved in the
-- meantime does not match. Nor does one that is live again because it was replayed: it can have new
-- children.
SELECT dependents.parent_id, dependents.child_id, finished_parents.state
FROM dependents
JOIN finished_parents ON finished_parents.id = dependents.parent_id
WHERE dependents.lane = :lane
    AND dependents.parent_id = ANY(:parents::uuid[])
    AND finished_parents.lane = :lane
    AND finished_parents.id = ANY(:parents::uuid[])
    AND dependents.parent_id <> ALL({{live_parents}})
ORDER BY dependents.parent_id, dependents.child_id
LIMIT :limit;

-- name: unblock
-- row: MovedJobRow
-- blocked -> ready | pending | scheduled | blocked (it waits for other parents too).
--
-- If the parents :failed, only children whose on_parent_failure is `run` are unblocked. run_at of a
-- child that becomes ready is :now, because until now it waited for its parents and not for a
-- worker.
WITH locked AS (
    SELECT id,
        ARRAY(
            SELECT parent.id
            FROM unnest(waiting_for) AS parent (id)
            WHERE parent.id <> ALL(:parents::uuid[])
        ) AS waiting_for
    FROM jobs
    WHERE lane = :lane
        AND id = ANY(:ids::uuid[])
        AND waiting_for && :parents::uuid[]
        AND (NOT :failed OR on_parent_failure = 'run')
    ORDER BY id
    FOR UPDATE
),
unblocked AS (
    UPDATE jobs
    SET waiting_for = locked.waiting_for,
        run_at = CASE WHEN cardinality(locked.waiting_for) > 0 THEN jobs.run_at ELSE greatest(jobs.run_at, :now) END,
        state = CASE
            WHEN cardinality(locked.waiting_for) > 0 THEN 'blocked'
            WHEN jobs.run_at > :now THEN 'scheduled'
            WHEN {{is_held}} THEN 'pending'
            ELSE 'ready'
        END,
        state_reason = CASE WHEN cardinality(locked.waiting_for) > 0 THEN jobs.state_reason END
    FROM locked
    WHERE jobs.lane = :lane AND jobs.id = ANY(:ids::uuid[]) AND jobs.id = locked.id
    RETURNING {{jobs_moved_job}}
),
counted AS (
    INSERT INTO stat_deltas (lane, blocked, ready, scheduled)
    SELECT :lane, -count(*), {{ready_and_scheduled_counts}}
    FROM unblocked
    WHERE state <> 'blocked'
    HAVING count(*) > 0
)
SELECT {{moved_job}}
FROM unblocked;

-- name: to_be_cancelled
-- The children that must be cancelled because these parents have failed.
SELECT id
FROM jobs
WHERE lane = :lane
    AND id = ANY(:ids::uuid[])
    AND waiting_for && :parents::uuid[]
    AND on_parent_failure IS DISTINCT FROM 'run';

-- name: delete_dependents
DELETE FROM dependents
USING unnest(:parents::uuid[], :children::uuid[]) AS input (parent_id, child_id)
WHERE dependents.lane = :lane
    AND dependents.parent_id = ANY(:parents::uuid[])
    AND dependents.parent_id = input.parent_id
    AND dependents.child_id = input.child_id;

-- name: delete_finished_parents
-- Deletes the rows of resolved parents. Keeps a parent that still has dependents: it was replayed
-- in the meantime and has finished again. The row of a parent that is live is deleted in any case,
-- because that parent has not finished.
DELETE FROM finished_parents
WHERE lane = :lane
    AND id = ANY(:parents::uuid[])
    AND (
        id <> ALL(ARRAY(
            SELECT parent_id
            FROM dependents
            WHERE dependents.lane = :lane AND dependents.parent_id = ANY(:parents::uuid[])
        ))
        OR id = ANY({{live_parents}})
    );
