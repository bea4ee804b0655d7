-- Grants what a broker needs to longshore_broker, or to a role of another name. May be repeated.
--
--  * Partitions of finished jobs are created and dropped by functions that run as their owner.
--    Apart from these functions, the broker's role can neither create, alter, drop nor truncate a
--    table.
--  * The broker can insert finished jobs and cannot change them.
--  * Must be called by the owner of the tables or by a role that may act for it: Postgres lets no
--    other role grant these privileges.
--  * No default privileges: they would apply to each new partition, too.
--  * A later migration that creates a table grants it in this function, and to every role that has
--    `jobs`.
CREATE FUNCTION grant_to_broker(grantee name) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    home CONSTANT name := current_schema();
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', home, grantee);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE
        ON jobs, dead_letters, keys, leaders, workers, asks, job_types, schedules, passes, rests, dependents, endings,
            stat_deltas, stat_totals, stat_rates, stat_times
        TO %I',
        grantee
    );
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON queues, gates, api_keys TO %I', grantee);
    EXECUTE format('GRANT SELECT, INSERT ON finished_jobs TO %I', grantee);
    EXECUTE format('GRANT SELECT, UPDATE ON versions TO %I', grantee);
    EXECUTE format('GRANT SELECT ON finished_jobs_default, alembic_version TO %I', grantee);
    EXECUTE format('GRANT EXECUTE ON FUNCTION make_finished_partition, retire_finished_partition TO %I', grantee);
END
$$;

REVOKE EXECUTE ON FUNCTION grant_to_broker FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION grant_to_broker SET search_path = %I, pg_temp', current_schema());
END
$$;

-- Roles belong to the whole server: another database may have created it already, or may be
-- creating it now.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        CREATE ROLE longshore_broker NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        RAISE NOTICE 'the role longshore_broker is there already';
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'no right to create the role longshore_broker: make one, and call grant_to_broker with its name';
END
$$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        PERFORM grant_to_broker('longshore_broker');
    END IF;
END
$$;
