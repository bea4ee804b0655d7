-- API keys. There are few: every process caches all of them and authenticates from its cache.
-- A transaction that creates or revokes a key also increments the config version `api_keys`.
-- A revoked key keeps its row. A broker accepts anonymous callers only while this table is empty,
-- so a broker that has had a key never accepts anonymous callers again.

-- fragment: key_columns
-- The columns of KeyRow.
--
-- Earlier versions accepted an expiry at 9999-12-31T23:59:59.999999Z, which Postgres stores as
-- `infinity`. asyncpg would return `infinity` as a datetime without a time zone. Such a key does
-- not expire, so its expiry is returned as NULL.
id, name, mac, scopes, requests_per_second, max_leases, created_at,
    nullif(expires_at, 'infinity') AS expires_at, last_used_at, revoked_at

-- name: all_keys
-- row: KeyRow
SELECT {{key_columns}}
FROM api_keys;

-- name: list_keys
-- row: KeyRow
SELECT {{key_columns}}
FROM api_keys
WHERE :after_created_at::timestamptz IS NULL OR (created_at, id) < (:after_created_at, :after_id)
ORDER BY created_at DESC, id DESC
LIMIT :limit;

-- name: get_key
-- row: KeyRow
SELECT {{key_columns}}
FROM api_keys
WHERE id = :id;

-- name: count_live_keys
SELECT count(*)
FROM api_keys
WHERE name = :name AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now);

-- name: add_key
-- row: KeyRow
INSERT INTO api_keys (id, name, mac, scopes, requests_per_second, max_leases, created_at, expires_at)
VALUES (:id, :name, :mac, :scopes, :requests_per_second, :max_leases, :created_at, :expires_at)
RETURNING {{key_columns}};

-- name: revoke_key
-- row: KeyRow
-- Revoking a revoked key changes nothing.
UPDATE api_keys
SET revoked_at = coalesce(revoked_at, :now)
WHERE id = :id
RETURNING {{key_columns}};

-- name: record_key_use
UPDATE api_keys
SET last_used_at = greatest(api_keys.last_used_at, used.at)
FROM unnest(:ids::text[], :used_at::timestamptz[]) AS used (id, at)
WHERE api_keys.id = used.id;
