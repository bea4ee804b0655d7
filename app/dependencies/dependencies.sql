-- Dependencies between jobs.
--
-- A child is `blocked` while its `waiting_for` contains a parent. The table `finished_parents` has
-- the finished parents whose children are still to be unblocked or cancelled. The dependency
-- resolver removes these parents from `waiting_for`. Removing a parent twice changes nothing, so an
-- interrupted run of the resolver can be repeated. Lock order: see leases.sql.

-- fragment: live_parents
-- The ids of the jobs among :parents that are live.
ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = :lane AND jobs.id = ANY(:parents::uuid[]))

-- name: mark_parents
-- Any live state -> the same state, with has_dependents.
-- Returns the ids of the live jobs. The row locks keep the parents from finishing before their
-- child is stored.
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
-- The results of finished jobs. NULL for a job without a result.
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
-- Finished parents whose children are still to be unblocked or cancelled. Usually there are none.
-- The statement that finishes a parent inserts its row here.
SELECT lane, id, state
FROM finished_parents
ORDER BY lane, id
LIMIT :limit;

-- name: children_of
-- row: DependentRow
-- Children of finished parents, with the final states of the parents. These parents do not match:
--
--  * a parent whose children another broker has resolved in the meantime;
--  * a parent that is live again because it was replayed, since it can have new children.
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
-- blocked -> ready | pending | scheduled | blocked (still waits for other parents).
--
-- If the parents :failed, unblocks only children whose on_parent_failure is `run`. If a child
-- becomes ready, its run_at becomes :now, because until now the child waited for its parents and
-- not for a worker.
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
changed AS (
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
    RETURNING {{jobs_moved_job}}, jobs.priority
),
{{covering_spans}},
counted AS (
    INSERT INTO stat_deltas (lane, blocked, ready, scheduled)
    SELECT :lane, -count(*), {{ready_and_scheduled_counts}}
    FROM changed
    WHERE state <> 'blocked'
    HAVING count(*) > 0
)
SELECT {{moved_job}}
FROM changed;

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
-- Deletes the rows of parents whose children are resolved. Keeps the row of a parent that still has
-- dependents, because the parent was replayed in the meantime and has finished again. Deletes the
-- row of a live parent in any case, because that parent has not finished.
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
