-- API keys. There are few; every process caches them and authenticates from its cache.
-- Every write bumps the configuration version `api_keys` in the same transaction.
-- A revoked key keeps its row: a broker that ever had a key never accepts anonymous callers again.

-- Earlier releases accepted 9999-12-31T23:59:59.999999Z. Postgres stores it as `infinity`, which
-- asyncpg
-- returns as a datetime without a time zone. Such a key does not expire.

-- name: all_keys
-- row: KeyRow
SELECT id, name, mac, scopes, requests_per_second, max_leases, created_at, nullif(expires_at, 'infinity') AS expires_at, last_used_at,
    revoked_at
FROM api_keys;

-- name: list_keys
-- row: KeyRow
SELECT id, name, mac, scopes, requests_per_second, max_leases, created_at, nullif(expires_at, 'infinity') AS expires_at, last_used_at,
    revoked_at
FROM api_keys
WHERE $1::timestamptz IS NULL OR (created_at, id) < ($1, $2)
ORDER BY created_at DESC, id DESC
LIMIT $3;

-- name: get_key
-- row: KeyRow
SELECT id, name, mac, scopes, requests_per_second, max_leases, created_at, nullif(expires_at, 'infinity') AS expires_at, last_used_at,
    revoked_at
FROM api_keys
WHERE id = $1;

-- name: live_keys
SELECT count(*)
FROM api_keys
WHERE name = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2);

-- name: add_key
-- row: KeyRow
INSERT INTO api_keys (id, name, mac, scopes, requests_per_second, max_leases, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING id, name, mac, scopes, requests_per_second, max_leases, created_at, nullif(expires_at, 'infinity') AS expires_at, last_used_at,
    revoked_at;

-- name: revoke_key
-- row: KeyRow
-- Revoking a revoked key changes nothing.
UPDATE api_keys
SET revoked_at = coalesce(revoked_at, $2)
WHERE id = $1
RETURNING id, name, mac, scopes, requests_per_second, max_leases, created_at, nullif(expires_at, 'infinity') AS expires_at, last_used_at,
    revoked_at;

-- name: record_key_use
UPDATE api_keys
SET last_used_at = greatest(api_keys.last_used_at, used.at)
FROM unnest($1::text[], $2::timestamptz[]) AS used (id, at)
WHERE api_keys.id = used.id;
