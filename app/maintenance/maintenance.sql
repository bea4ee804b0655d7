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

-- name: overdue
-- What each sweep would find first, and when its time is or was (NULL: now). One entry of an index each; of leases from where the last
-- sweep ended, as before there are dead entries only, and up to now, as behind it may be many. Groups at rest are few.
-- Earlier releases stored instants before 1970, and '-infinity' is read as a datetime that cannot be compared with others.
(SELECT 'promotion' AS sweep, greatest(run_at, 'epoch') AS instant FROM jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT 1)
UNION ALL
(SELECT 'lateness', greatest(expires_at, 'epoch') FROM jobs WHERE expires_at <= $2 AND lease_expires_at IS NULL ORDER BY expires_at LIMIT 1)
UNION ALL
(SELECT 'expiry', lease_expires_at FROM jobs WHERE lease_expires_at > $1 AND lease_expires_at <= $2 ORDER BY lease_expires_at LIMIT 1)
UNION ALL
(SELECT 'firing', next_run_at FROM schedules WHERE next_run_at IS NOT NULL ORDER BY next_run_at LIMIT 1)
UNION ALL
(SELECT 'releasing', NULL FROM endings ORDER BY lane, id LIMIT 1)
UNION ALL
(SELECT 'turns', NULL FROM jobs WHERE state = 'parked' ORDER BY lane LIMIT 1)
UNION ALL
(SELECT 'turns', NULL FROM rests WHERE until <= $2 ORDER BY lane, group_key LIMIT 1);

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
