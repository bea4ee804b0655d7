-- What holds a job back. Every answer is bounded, however long the queue is.

-- name: waiting_facts
-- fills: WaitingFacts
SELECT priority, turn, awaits
FROM jobs
WHERE lane = $1 AND id = $2;

-- name: admitted_of_group
-- Who has a turn in the group, the first twenty.
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
-- Among the first of them, in the order of a claim.
SELECT count(*) FILTER (WHERE priority > $2 OR (priority = $2 AND id < $3))
FROM (
    SELECT priority, id
    FROM jobs
    WHERE lane = $1 AND state = 'ready'
    ORDER BY priority DESC, id
    LIMIT $4
) AS head;

-- name: ahead_admitted
-- The same for a fair queue.
SELECT count(*) FILTER (WHERE priority > $2 OR (priority = $2 AND (turn, id) < ($5, $3)))
FROM (
    SELECT priority, turn, id
    FROM jobs
    WHERE lane = $1 AND state = 'ready' AND turn IS NOT NULL
    ORDER BY priority DESC, turn, id
    LIMIT $4
) AS head;
