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

-- name: add_coverage
-- row: CheckedPage
-- Adds the ready spans and lease checks that are missing for a page of jobs, after (:after_lane,
-- :after_id). Looks for a span among the hundred that begin right before the job. If another span
-- covers it, the new one is superfluous, which does no harm.
WITH page AS MATERIALIZED (
    SELECT lane, id, state, priority, worker_id, lease_token, lease_expires_at
    FROM jobs
    WHERE (lane, id) > (:after_lane::int, :after_id::uuid)
    ORDER BY lane, id
    LIMIT :limit
),
spans AS (
    INSERT INTO ready_spans (lane, priority, first_id, last_id)
    SELECT lane, priority, id, id
    FROM page
    WHERE state = 'ready' AND (
        SELECT bool_or(span.last_id >= page.id)
        FROM (
            SELECT last_id
            FROM ready_spans
            WHERE lane = page.lane AND priority = page.priority AND first_id <= page.id
            ORDER BY first_id DESC
            LIMIT 100
        ) AS span
    ) IS NOT TRUE
    RETURNING lane
),
unchecked AS (
    SELECT lane, {{claim_of_token}} AS claim, min(lease_expires_at) AS lease_expires_at, min(worker_id) AS worker_id,
        array_agg(id) AS job_ids
    FROM page
    WHERE state = 'running' AND lease_token IS NOT NULL AND lease_expires_at IS NOT NULL AND (
        SELECT page.id = ANY(job_ids)
        FROM lease_checks
        WHERE lane = page.lane AND claim = {{claim_of_token}}
    ) IS NOT TRUE
    GROUP BY lane, {{claim_of_token}}
),
checks AS (
    INSERT INTO lease_checks (lane, check_at, claim, worker_id, job_ids)
    SELECT lane, lease_expires_at, claim, worker_id, job_ids
    FROM unchecked
    ON CONFLICT (lane, claim) DO UPDATE
    SET check_at = least(lease_checks.check_at, excluded.check_at), job_ids = lease_checks.job_ids || excluded.job_ids
    RETURNING lane
)
SELECT (SELECT count(*) FROM page) AS jobs, (SELECT count(*) FROM spans) AS spans, (SELECT count(*) FROM checks) AS checks,
    (SELECT lane FROM page ORDER BY lane DESC, id DESC LIMIT 1) AS last_lane,
    (SELECT id FROM page ORDER BY lane DESC, id DESC LIMIT 1) AS last_id;

-- name: spans_after
-- row: SpanRow
-- A page of ready spans, in the order of the index, with whether they have ready jobs.
SELECT span.lane, span.priority, span.first_id, job.id IS NULL AS is_empty
FROM (
    (
        SELECT lane, priority, first_id, last_id
        FROM ready_spans
        WHERE lane = :lane AND priority = :priority AND first_id > :first_id
        ORDER BY first_id
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT lane, priority, first_id, last_id
        FROM ready_spans
        WHERE lane = :lane AND priority < :priority
        ORDER BY priority DESC, first_id
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT lane, priority, first_id, last_id
        FROM ready_spans
        WHERE lane > :lane
        ORDER BY lane, priority DESC, first_id
        LIMIT :limit
    )
    LIMIT :limit
) AS span
LEFT JOIN LATERAL (
    SELECT id
    FROM jobs
    WHERE lane = span.lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
        AND priority = span.priority
    ORDER BY id
    LIMIT 1
) AS job ON true;

-- name: lock_spans
-- Locks ready spans of a lane, except those that a claim has locked.
SELECT first_id
FROM ready_spans
WHERE lane = :lane AND priority = ANY(:priorities::smallint[]) AND first_id = ANY(:first_ids::uuid[])
FOR UPDATE SKIP LOCKED;

-- name: delete_empty_spans
-- Deletes those of the ready spans that this transaction has locked, and that have no ready job.
-- A statement of its own: it sees every job that was ready when the span was locked. A job that
-- becomes ready later has a span of its own.
DELETE FROM ready_spans AS span
WHERE lane = :lane AND priority = ANY(:priorities::smallint[]) AND first_id = ANY(:first_ids::uuid[])
    AND xmax = pg_current_xact_id()::xid
    AND (
        SELECT id
        FROM jobs
        WHERE lane = :lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
            AND priority = span.priority
        ORDER BY id
        LIMIT 1
    ) IS NULL
RETURNING first_id;

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
