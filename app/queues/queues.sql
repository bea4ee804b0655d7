-- Queues. There are at most some thousand, cached in every process; nothing on the hot path writes here.

-- name: all_queues
-- fills: QueueRow
-- In the order of bytes, as pages are cut by comparing names in Python.
SELECT id, name, lanes, created_at, config, paused_at, paused_reason, deleted_at
FROM queues
ORDER BY name COLLATE "C";

-- name: add_queue
-- Comes into being with the next free number, or back into being with its old one. Nothing happens if another process was first.
INSERT INTO queues (id, name)
SELECT coalesce(max(id), 0) + 1, $1
FROM queues
HAVING count(*) FILTER (WHERE deleted_at IS NULL) < $2
ON CONFLICT (name) DO UPDATE
SET deleted_at = NULL
WHERE queues.deleted_at IS NOT NULL;
