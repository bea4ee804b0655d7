-- Work that no request asks for.

-- name: lead
-- A lease on a chore that one process is enough for: taken when free or ours, or when its holder has not renewed it.
INSERT INTO leaders (chore, holder, held_until)
VALUES ($1, $2, now() + make_interval(secs => $3))
ON CONFLICT (chore) DO UPDATE
SET holder = excluded.holder, held_until = excluded.held_until
WHERE leaders.holder = excluded.holder OR leaders.held_until < now()
RETURNING holder;

-- name: step_down
DELETE FROM leaders
WHERE holder = $1;

-- name: make_partition
SELECT make_finished_partition($1, $2);

-- name: stray_days
-- Days of jobs that finished while their partition was not there: under other settings, or when none could be made. Mostly none.
SELECT DISTINCT archive, (keep_until AT TIME ZONE 'UTC')::date AS day
FROM finished_jobs_default;

-- name: partitions
-- Dated partitions; the default one is not among them.
SELECT child.relname AS name
FROM pg_inherits
JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = 'finished_jobs'::regclass AND child.relname ~ '[0-9]{8}$'
ORDER BY child.relname;

-- name: retire_partition
-- completed | cancelled -> (nothing, or an archive).  Their number is taken off the counts in the same transaction.
SELECT retire_finished_partition($1, $2);
