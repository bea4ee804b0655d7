-- Removes waiting jobs at the request of an operator. One statement finds them, another deletes
-- them within one lane. Lock order: see leases.sql.

-- name: count_purgeable
SELECT count(*)
FROM jobs
WHERE lane >= $1 AND lane < $2 AND state = ANY($3::text[]);

-- name: purgeable_jobs
-- Scans all lanes of a queue in lock order: $1 and $2 are where the last batch ended. Jobs from $4
-- on were inserted after the purge began: without that bound the purge of a busy queue would never
-- end.
SELECT id
FROM jobs
WHERE (lane, id) > ($1, $2) AND lane < $3 AND id < $4 AND state = ANY($5::text[])
ORDER BY lane, id
LIMIT $6;

-- name: purge_waiting
-- scheduled | blocked | ready | pending -> (nothing).
--
-- A job that was claimed in the meantime does not match. A job that others depend on is recorded as
-- purged in finished_parents: otherwise its children would wait forever.
WITH locked AS (
    SELECT id, state
    FROM jobs
    WHERE lane = $1 AND id = ANY($2::uuid[]) AND lease_expires_at IS NULL
    ORDER BY id
    FOR UPDATE
),
deleted AS (
    DELETE FROM jobs
    WHERE lane = $1 AND id = ANY(ARRAY(SELECT id FROM locked WHERE state = ANY($3::text[])))
    RETURNING lane, id, state, has_dependents
),
recorded_parents AS (
    INSERT INTO finished_parents (lane, id, state)
    SELECT lane, id, 'purged'
    FROM deleted
    WHERE has_dependents
    ON CONFLICT DO NOTHING
),
counted AS (
    INSERT INTO stat_deltas (lane, scheduled, blocked, ready)
    SELECT $1, -count(*) FILTER (WHERE state = 'scheduled'), -count(*) FILTER (WHERE state = 'blocked'),
        -count(*) FILTER (WHERE state IN ('ready', 'pending'))
    FROM deleted
    HAVING count(*) > 0
)
SELECT id
FROM deleted;
