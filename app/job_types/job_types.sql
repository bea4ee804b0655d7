-- Job types. Few, cached in every process; nothing on the hot path reads or writes here.
-- Who writes has grown the version before (app/db/versions.py), so that writers come one after the other.

-- name: all_job_types
-- fills: CachedRow
-- Without the configurations that the caller has: they are large, and hardly ever change.
SELECT job_types.name, job_types.updated_at, CASE WHEN known.name IS NULL THEN job_types.config END AS config
FROM job_types
LEFT JOIN unnest($1::text[], $2::timestamptz[]) AS known (name, updated_at)
    ON known.name = job_types.name AND known.updated_at = job_types.updated_at;

-- name: get_job_type
-- fills: JobTypeRow
SELECT name, config, created_at, updated_at
FROM job_types
WHERE name = $1;

-- name: list_job_types
-- fills: JobTypeRow
SELECT name, config, created_at, updated_at
FROM job_types
WHERE name > $1
ORDER BY name
LIMIT $2;

-- name: put_job_type
-- fills: JobTypeRow
-- `updated_at` tells one configuration from the next, so it grows even when the clock does not.
INSERT INTO job_types (name, config, created_at, updated_at)
VALUES ($1, $2, $3, $3)
ON CONFLICT (name) DO UPDATE
SET config = excluded.config, updated_at = greatest(excluded.updated_at, job_types.updated_at + interval '1 microsecond')
RETURNING name, config, created_at, updated_at;

-- name: delete_job_type
-- fills: JobTypeRow
-- Jobs of the type stay as they are.
DELETE FROM job_types
WHERE name = $1
RETURNING name, config, created_at, updated_at;
