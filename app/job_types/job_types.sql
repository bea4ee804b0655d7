-- Job types. There are few; every process caches them, and enqueue reads the cache.
-- Every write bumps the configuration version `policies` first.

-- name: all_job_types
-- row: JobTypeRow
SELECT name, config, created_at, updated_at
FROM job_types;

-- name: list_job_types
-- Sorted by bytes, as everywhere, because the database may have any collation.
-- Returns the first rows of a page that fit into $3 bytes, at least one, and the row count of the
-- page.
SELECT name, config, created_at, updated_at, total
FROM (
    SELECT name, config, created_at, updated_at, count(*) OVER () AS total, row_number() OVER by_name AS place,
        sum(octet_length(config)) OVER by_name AS bytes
    FROM (
        SELECT name, config, created_at, updated_at
        FROM job_types
        WHERE name COLLATE "C" > $1
        ORDER BY name COLLATE "C"
        LIMIT $2
    ) AS page
    WINDOW by_name AS (ORDER BY name COLLATE "C" ROWS UNBOUNDED PRECEDING)
) AS measured
WHERE place = 1 OR bytes <= $3
ORDER BY name COLLATE "C";

-- name: get_job_type
-- row: JobTypeRow
SELECT name, config, created_at, updated_at
FROM job_types
WHERE name = $1;

-- name: put_job_type
-- row: JobTypeRow
-- Replaces the whole configuration.
INSERT INTO job_types (name, config, created_at, updated_at)
VALUES ($1, $2, $3, $3)
ON CONFLICT (name) DO UPDATE
SET config = excluded.config, updated_at = excluded.updated_at
RETURNING name, config, created_at, updated_at;

-- name: delete_job_type
-- row: JobTypeRow
DELETE FROM job_types
WHERE name = $1
RETURNING name, config, created_at, updated_at;
