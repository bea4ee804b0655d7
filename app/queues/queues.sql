-- Queues. There are few (by default at most 10,000), and every process caches them. They are rarely
-- written.
-- Lock order: rows of queues by id, after all other locks; then the row in `config_versions`.
-- A deleted queue keeps its row, because its finished jobs are still shown with its name.
-- Queue n has at most 256 lanes, numbered from n << 8 (app/db/lanes.py).

-- fragment: queue_columns
-- The columns of QueueRow.
id, name, lanes, group_lanes, created_at, config, paused_at, paused_reason, deleted_at

-- fragment: in_queue
-- Whether the lane of a row is one of the 256 that the queue may have. This condition is a range of
-- an index on (lane, ...).
lane >= :id::int << 8 AND lane < (:id::int + 1) << 8

-- name: queues_after
-- row: QueueRow
-- The next queues after the id :after, by id.
SELECT {{queue_columns}}
FROM queues
WHERE id > :after
ORDER BY id
LIMIT :limit;

-- name: queues_named
-- row: QueueRow
SELECT {{queue_columns}}
FROM queues
WHERE name = ANY(:names::text[]);

-- name: queues_with_ids
-- row: QueueRow
SELECT {{queue_columns}}
FROM queues
WHERE id = ANY(:ids::int[]);

-- name: queue_totals
-- row: QueueTotals
-- Counts queues, and reads which ids new queues may have: from next_id to last_id.
SELECT count(queues.id) AS all,
    count(queues.id) FILTER (WHERE queues.deleted_at IS NULL) AS not_deleted,
    coalesce(max(queues.id) FILTER (WHERE queues.id BETWEEN first_id AND last_id) + 1, first_id) AS next_id,
    last_id
FROM queue_id_range
LEFT JOIN queues ON true
GROUP BY first_id, last_id;

-- name: list_queues
-- row: QueueRow
-- Sorts by bytes, so that pages do not depend on the collation of the database.
-- :name_regex matches the names of accessible queues. It is NULL if all queues are accessible.
SELECT {{queue_columns}}
FROM queues
WHERE deleted_at IS NULL AND name COLLATE "C" > :after AND (:name_regex::text IS NULL OR name ~ :name_regex)
ORDER BY name COLLATE "C"
LIMIT :limit;

-- name: get_queue
-- row: QueueRow
SELECT {{queue_columns}}
FROM queues
WHERE name = :name;

-- name: lock_queue
-- row: QueueRow
-- Concurrent changes of one queue wait for this lock, so that no change overwrites another.
SELECT {{queue_columns}}
FROM queues
WHERE name = :name
FOR NO KEY UPDATE;

-- name: add_queues
-- Creates queues with the ids that the broker has chosen, or undeletes the queues with these ids.
-- Does nothing if there would be more than :max_queues queues.
-- Returns each queue and whether it was undeleted.
-- A queue that another process has created in the meantime is not returned.
-- An id that another process has used in the meantime causes a unique violation.
-- A row that this statement inserts has created_at = now().
INSERT INTO queues (id, name)
SELECT new.id, new.name
FROM unnest(:ids::int[], :names::text[]) AS new (id, name)
WHERE (SELECT count(*) FROM queues WHERE deleted_at IS NULL) + cardinality(:ids::int[]) <= :max_queues
ON CONFLICT (name) DO UPDATE
SET deleted_at = NULL
WHERE queues.deleted_at IS NOT NULL AND queues.id = excluded.id
RETURNING name, created_at < now() AS undeleted;

-- name: next_queue_id
-- Returns NULL if all ids of the range are used.
SELECT CASE WHEN coalesce(max(queues.id), 0) < last_id THEN coalesce(max(queues.id) + 1, first_id) END
FROM queue_id_range
LEFT JOIN queues ON queues.id BETWEEN first_id AND last_id
GROUP BY first_id, last_id;

-- name: write_queue
UPDATE queues
SET lanes = :lanes,
    group_lanes = :group_lanes,
    config = :config,
    paused_at = :paused_at,
    paused_reason = :paused_reason,
    deleted_at = :deleted_at
WHERE id = :id;

-- name: has_jobs
-- Whether a queue has live jobs or dead letters in any lane that it may have. Probes one index of
-- each table.
SELECT EXISTS (SELECT 1 FROM jobs WHERE {{in_queue}})
    OR EXISTS (SELECT 1 FROM dead_letters WHERE {{in_queue}});

-- name: unclaimed_lanes
-- Finds lanes that have live jobs or dead letters, although their queue is deleted or has fewer
-- lanes: a process with an outdated cache may have enqueued there, and no claim reads such a lane.
-- Reads the statistics of all lanes, which are exact. Citus rejects a probe of the jobs for each
-- queue in one statement.
SELECT parts.lane
FROM (
    SELECT lane, scheduled + blocked + ready + running + dead AS jobs
    FROM stat_totals
    UNION ALL
    SELECT lane, scheduled + blocked + ready + running + dead
    FROM stat_deltas
) AS parts
JOIN queues ON queues.id = parts.lane >> 8
WHERE queues.deleted_at IS NOT NULL OR parts.lane >= (queues.id << 8) + queues.lanes
GROUP BY parts.lane
HAVING sum(parts.jobs) > 0;

-- name: reopen_lanes
-- Undeletes queues, and gives each at least its number of :lanes.
UPDATE queues
SET deleted_at = NULL, lanes = greatest(queues.lanes, new.lanes)
FROM unnest(:ids::int[], :lanes::int[]) AS new (id, lanes)
WHERE queues.id = new.id
RETURNING queues.name;

-- name: queues_with_new_lanes
-- Finds queues whose groups are not spread over the current number of lanes yet.
SELECT id
FROM queues
WHERE group_lanes <> lanes;

-- name: has_groups
-- Whether a live job or a dead letter of the queue has a group.
SELECT EXISTS (SELECT 1 FROM jobs WHERE {{in_queue}} AND group_key IS NOT NULL)
    OR EXISTS (SELECT 1 FROM dead_letters WHERE {{in_queue}} AND group_key IS NOT NULL);

-- name: spread_groups
-- Spreads the groups of queues over their current numbers of lanes. Before, no live job and no dead
-- letter of the queue may have a group: a group could be in two lanes and lose its order.
UPDATE queues
SET group_lanes = lanes
WHERE id = ANY(:ids::int[])
RETURNING name;
