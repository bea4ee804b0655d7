-- Job types. There are few. Every process caches them, and an enqueue reads them from the cache.
-- Every transaction that writes job types first increments the config version `policies`. The row
-- lock of the version serializes these transactions.

-- fragment: job_type_columns
-- The columns of JobTypeRow.
name, config, created_at, updated_at

-- name: all_job_types
-- row: JobTypeRow
SELECT {{job_type_columns}}
FROM job_types;

-- name: list_job_types
-- Sorts by bytes, so that pages do not depend on the collation of the database.
-- Returns the first rows of a page, as many as fit into :max_bytes, but at least one. `total` is
-- the number of rows that the page would have without :max_bytes.
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
