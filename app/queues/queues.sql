-- name: all_queues
-- fills: Queue
-- The cache reads them all: there are at most a few thousand. In the order of bytes, as pages are cut by comparing names in Python.
SELECT id, name, lanes, created_at
FROM queues
ORDER BY name COLLATE "C";

-- name: add_queue
-- Comes into being with the next free number. Nothing happens if another process was first, with the name or with the number.
INSERT INTO queues (id, name)
SELECT coalesce(max(id), 0) + 1, $1
FROM queues
HAVING count(*) < $2
ON CONFLICT DO NOTHING;
