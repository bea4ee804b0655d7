-- Creates the roles longshore_producer, which may call longshore_enqueue_v1, and longshore_broker,
-- which has the privileges that a broker needs. Roles belong to the whole server: the migration of
-- another database may have created them already, or may be creating them now.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_producer') THEN
        CREATE ROLE longshore_producer NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        RAISE NOTICE 'the role longshore_producer exists already';
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'cannot create the role longshore_producer: grant EXECUTE on longshore_enqueue_v1 to another role';
END
$$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_producer') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO longshore_producer', current_schema());
        GRANT EXECUTE ON FUNCTION longshore_enqueue_v1 TO longshore_producer;
    END IF;
END
$$;

-- Grants a role, longshore_broker or a role with another name, the privileges that a broker needs.
-- The call can be repeated.
--
--  * Partitions of finished jobs are created and dropped by functions that run as their owner.
--    Apart from these functions, the broker's role can neither create, alter, drop nor truncate a
--    table.
--  * The broker can insert finished jobs and cannot change them.
--  * The caller must be the owner of the tables or a member of the owner's role, because Postgres
--    lets no other role grant these privileges.
--  * The function grants no default privileges, because these would apply to each new partition,
--    too.
--  * A later migration that creates a table must add the table to this function, and must grant it
--    to every role that has privileges on `jobs`.
CREATE FUNCTION grant_to_broker(grantee name) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), grantee);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE
        ON jobs, ready_spans, lease_checks, dead_letters, deduplication_keys, leaders, clock_lags, workers,
            poll_history, job_types, schedules, rate_limit_usage, group_cooldowns, dependents, finished_parents,
            stat_deltas, stat_totals, stat_rates, stat_durations
        TO %I',
        grantee
    );
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON queues, lane_locks, api_keys TO %I', grantee);
    EXECUTE format('GRANT SELECT, INSERT ON finished_jobs TO %I', grantee);
    EXECUTE format('GRANT SELECT, UPDATE ON config_versions TO %I', grantee);
    EXECUTE format('GRANT SELECT ON finished_jobs_default, alembic_version, queue_id_range TO %I', grantee);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION create_finished_partition, retire_finished_partition, claim_jobs TO %I', grantee
    );
END
$$;

REVOKE EXECUTE ON FUNCTION grant_to_broker FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION grant_to_broker SET search_path = %I, pg_temp', current_schema());
END
$$;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        CREATE ROLE longshore_broker NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        RAISE NOTICE 'the role longshore_broker exists already';
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'cannot create the role longshore_broker: create a role, and call grant_to_broker with its name';
END
$$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        PERFORM grant_to_broker('longshore_broker');
    END IF;
END
$$;
