-- Job types: small, cached in every process, read at enqueue from the cache. Who writes here makes the version grow first.

-- name: all_job_types
-- fills: JobTypeRow
SELECT name, config, created_at, updated_at
FROM job_types;

-- name: list_job_types
-- fills: JobTypeRow
-- In the order of bytes, as everywhere: the collation of a database is not ours to choose.
SELECT name, config, created_at, updated_at
FROM job_types
WHERE name COLLATE "C" > $1
ORDER BY name COLLATE "C"
LIMIT $2;

-- name: get_job_type
-- fills: JobTypeRow
SELECT name, config, created_at, updated_at
FROM job_types
WHERE name = $1;

-- name: put_job_type
-- fills: JobTypeRow
-- Declarative: the whole configuration is replaced.
INSERT INTO job_types (name, config, created_at, updated_at)
VALUES ($1, $2, $3, $3)
ON CONFLICT (name) DO UPDATE
SET config = excluded.config, updated_at = excluded.updated_at
RETURNING name, config, created_at, updated_at;

-- name: delete_job_type
-- fills: JobTypeRow
DELETE FROM job_types
WHERE name = $1
RETURNING name, config, created_at, updated_at;
