-- The keys that may call the API. Only an HMAC of the secret is stored. Rows stay when a key is
-- revoked.
CREATE TABLE api_keys (
    id text PRIMARY KEY,
    name text NOT NULL,
    mac bytea NOT NULL,
    scopes text[] NOT NULL,
    requests_per_second float8,
    max_leases int,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz
);

INSERT INTO versions (name, number)
VALUES ('api_keys', 1);

-- The name of the key that claimed the job, if the key has a quota of leases.
ALTER TABLE jobs ADD COLUMN held_by text;
