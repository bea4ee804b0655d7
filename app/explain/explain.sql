-- Why a job is not running. Every statement reads a bounded number of rows of the queue.

-- name: waiting_facts
-- fills: WaitingFacts
SELECT priority, turn, awaits
FROM jobs
WHERE lane = $1 AND id = $2;

-- name: admitted_of_group
-- The first 20 admitted jobs of a group.
WITH found AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND turn IS NOT NULL AND coalesce(group_key, '') = $2
)
SELECT id
FROM found
ORDER BY id
LIMIT 20;

-- name: ahead_in_group
SELECT count(*)
FROM (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND state = 'parked' AND coalesce(group_key, '') = $2 AND id < $3
    LIMIT $4
) AS ahead;

-- name: ahead_in_queue
-- Counts among the first jobs of the lane, in the order in which they are claimed.
SELECT count(*) FILTER (WHERE priority > $2 OR (priority = $2 AND id < $3))
FROM (
    SELECT priority, id
    FROM jobs
    WHERE lane = $1 AND state = 'ready'
    ORDER BY priority DESC, id
    LIMIT $4
) AS head;

-- name: ahead_admitted
-- The same for a fair queue, which is claimed pass by pass.
SELECT count(*) FILTER (WHERE priority > $2 OR (priority = $2 AND (turn, id) < ($5, $3)))
FROM (
    SELECT priority, turn, id
    FROM jobs
    WHERE lane = $1 AND state = 'ready' AND turn IS NOT NULL
    ORDER BY priority DESC, turn, id
    LIMIT $4
) AS head;
