-- Why a job is not running. Every statement reads a bounded number of rows of the queue.

-- name: waiting_facts
-- row: WaitingFacts
SELECT priority, admission, waiting_for
FROM jobs
WHERE lane = $1 AND id = $2;

-- name: admitted_of_group
-- The first 20 admitted jobs of a group.
WITH admitted AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND admission IS NOT NULL AND coalesce(group_key, '') = $2
)
SELECT id
FROM admitted
ORDER BY id
LIMIT 20;

-- name: ahead_in_group
SELECT count(*)
FROM (
    SELECT id
    FROM jobs
    WHERE lane = $1 AND state = 'pending' AND coalesce(group_key, '') = $2 AND id < $3
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
SELECT count(*) FILTER (WHERE priority > $2 OR (priority = $2 AND (admission, id) < ($5, $3)))
FROM (
    SELECT priority, admission, id
    FROM jobs
    WHERE lane = $1 AND state = 'ready' AND admission IS NOT NULL
    ORDER BY priority DESC, admission, id
    LIMIT $4
) AS head;
