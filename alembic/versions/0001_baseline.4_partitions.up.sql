-- Functions that create and retire partitions of finished_jobs, one per day of keep_until. They run
-- as the schema's owner, so that the broker's role needs no privilege to create or drop tables. A
-- function fails if it has to wait 200 ms for a lock. The service `partitions`, which calls these
-- functions, tries again a minute later.

CREATE FUNCTION create_finished_partition(day date, archived boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET timezone = 'UTC' SET lock_timeout = '200ms'
AS $$
DECLARE
    partition text := format(
        'finished_jobs_%s%s', CASE WHEN archived THEN 'archive_' ELSE '' END, to_char(day, 'YYYYMMDD')
    );
BEGIN
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE finished_jobs)', partition);
    EXECUTE format('ALTER TABLE %I REPLICA IDENTITY FULL', partition);
    EXECUTE format(
        'WITH moved AS (
            DELETE FROM finished_jobs_default
            WHERE archive = %L AND keep_until >= %L AND keep_until < %L
            RETURNING *
        )
        INSERT INTO %I SELECT * FROM moved',
        archived, day, day + 1, partition
    );
    EXECUTE format(
        'ALTER TABLE finished_jobs ATTACH PARTITION %I FOR VALUES FROM (%L, %L) TO (%L, %L)',
        partition, archived, day, archived, day + 1
    );
    RETURN true;
END
$$;

CREATE FUNCTION retire_finished_partition(partition text, archived boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms'
AS $$
BEGIN
    IF partition !~ '^finished_jobs_(archive_)?[0-9]{8}$' OR to_regclass(partition) IS NULL THEN
        RETURN false;
    END IF;
    -- Counts the rows before it locks the table, because no transaction may wait while a whole day
    -- is counted. No row is added to a past day in the meantime.
    EXECUTE format(
        'INSERT INTO stat_deltas (lane, completed, cancelled)
        SELECT lane, -count(*) FILTER (WHERE state = ''completed''), -count(*) FILTER (WHERE state = ''cancelled'')
        FROM %I
        GROUP BY lane',
        partition
    );
    EXECUTE format('ALTER TABLE finished_jobs DETACH PARTITION %I', partition);
    IF NOT archived THEN
        EXECUTE format('DROP TABLE %I', partition);
    END IF;
    RETURN true;
END
$$;

-- The functions are SECURITY DEFINER, so they must find only objects of this schema: they search
-- the temporary tables of their caller last. Only roles that were granted EXECUTE may call them.
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION create_finished_partition(date, boolean) SET search_path = %I, pg_temp', current_schema()
    );
    EXECUTE format(
        'ALTER FUNCTION retire_finished_partition(text, boolean) SET search_path = %I, pg_temp', current_schema()
    );
END
$$;
REVOKE EXECUTE ON FUNCTION create_finished_partition(date, boolean), retire_finished_partition(text, boolean)
FROM PUBLIC;
