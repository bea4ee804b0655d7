-- Statements of the maintenance services: leadership, clock lags, due check, partitions.

-- name: lead
-- Acquires or renews the leadership lease of a leader-only service. Returns no row if another
-- broker holds the lease and has renewed it in time. Both times are parameters, because Citus
-- rejects now() in the WHERE clause of ON CONFLICT.
INSERT INTO leaders (service, holder, held_until)
VALUES (:service, :holder, :until)
ON CONFLICT (service) DO UPDATE
SET holder = excluded.holder, held_until = excluded.held_until
WHERE leaders.holder = excluded.holder OR leaders.held_until < :now
RETURNING holder;

-- name: step_down
-- Deletes all leadership leases of a broker that stops.
DELETE FROM leaders
WHERE holder = :holder;

-- name: write_clock_lag
-- Stores a clock lag. It applies while the database's clock shows a time from starts_at to ends_at.
INSERT INTO clock_lags (clock, broker, seconds, starts_at, ends_at)
VALUES (:clock, :broker, :seconds, :starts_at, :ends_at)
ON CONFLICT (clock, broker) DO UPDATE
SET seconds = excluded.seconds, starts_at = excluded.starts_at, ends_at = excluded.ends_at;

-- name: delete_clock_lag
DELETE FROM clock_lags
WHERE clock = :clock AND broker = :broker;

-- name: delete_ended_clock_lags
-- Deletes clock lags that have ended. Their brokers no longer run, and have left these rows.
DELETE FROM clock_lags
WHERE ends_at < :before;

-- name: due_times
-- Finds the services that have work, and for each of them the time at which its first row is due,
-- in the past or in the future. NULL means now.
--
-- Each part of the UNION reads one index entry. Lease checks are read from the end of the last scan
-- (:after) on, because there are only dead index entries before it. They are read up to :now,
-- because very many checks may be due later. No index has the ends of cool-downs, but few groups
-- cool down at a time.
(SELECT 'job scheduler' AS service, due_at AS instant FROM jobs WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1)
UNION ALL
(SELECT 'start deadlines', start_by FROM jobs WHERE start_by <= :now ORDER BY start_by LIMIT 1)
UNION ALL
(SELECT 'lease rescuer', check_at FROM lease_checks
 WHERE check_at > :after AND check_at <= :now ORDER BY check_at LIMIT 1)
UNION ALL
(SELECT 'periodic enqueuer', next_run_at FROM schedules WHERE next_run_at IS NOT NULL ORDER BY next_run_at LIMIT 1)
UNION ALL
(SELECT 'dependency resolver', NULL FROM finished_parents ORDER BY lane, id LIMIT 1)
UNION ALL
(SELECT 'group scheduler', NULL FROM jobs WHERE pending_group IS NOT NULL ORDER BY lane LIMIT 1)
UNION ALL
(SELECT 'group scheduler', NULL FROM group_cooldowns WHERE until <= :now ORDER BY lane, group_key LIMIT 1);

-- name: create_partition
SELECT create_finished_partition(:day, :archive);

-- name: misplaced_days
-- Finds the daily partitions that are missing for jobs in the default partition. These jobs
-- finished while their partition did not exist: under other settings, or when the partition could
-- not be created. Usually there are no such jobs.
SELECT DISTINCT archive, (keep_until AT TIME ZONE 'UTC')::date AS day
FROM finished_jobs_default;

-- name: partitions
-- Lists the names of the daily partitions.
SELECT child.relname AS name
FROM pg_inherits
JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = 'finished_jobs'::regclass AND child.relname ~ '[0-9]{8}$'
ORDER BY child.relname;

-- name: retire_partition
-- completed | cancelled -> deleted or archived
--
-- Drops or detaches a partition, and subtracts its jobs from the counts of the statistics in the
-- same transaction.
SELECT retire_finished_partition(:name, :archive);
