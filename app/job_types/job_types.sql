-- Job types. There are few; every process caches them, and enqueue reads the cache.
-- Every write increments the config version `policies` first, which locks its row.

-- fragment: job_type_columns
-- The columns of JobTypeRow.
name, config, created_at, updated_at

-- name: all_job_types
-- row: JobTypeRow
SELECT {{job_type_columns}}
FROM job_types;

-- name: list_job_types
-- Sorted by bytes, as everywhere, because the database may have any collation.
-- Returns the first rows of a page that fit into :max_bytes, at least one, and the row count of
-- the page.
SELECT {{job_type_columns}}, total
FROM (
    SELECT {{job_type_columns}},
        count(*) OVER () AS total,
        row_number() OVER by_name AS place,
        sum(octet_length(config)) OVER by_name AS bytes
    FROM (
        SELECT {{job_type_columns}}
        FROM job_types
        WHERE name COLLATE "C" > :after
        ORDER BY name COLLATE "C"
        LIMIT :limit
    ) AS page
    WINDOW by_name AS (ORDER BY name COLLATE "C" ROWS UNBOUNDED PRECEDING)
) AS measured
WHERE place = 1 OR bytes <= :max_bytes
ORDER BY name COLLATE "C";

-- name: get_job_type
-- row: JobTypeRow
SELECT {{job_type_columns}}
FROM job_types
WHERE name = :name;

-- name: put_job_type
-- row: JobTypeRow
-- Replaces the whole configuration.
INSERT INTO job_types ({{job_type_columns}})
VALUES (:name, :config, :now, :now)
ON CONFLICT (name) DO UPDATE
SET config = excluded.config, updated_at = excluded.updated_at
RETURNING {{job_type_columns}};

-- name: delete_job_type
-- row: JobTypeRow
DELETE FROM job_types
WHERE name = :name
RETURNING {{job_type_columns}};
