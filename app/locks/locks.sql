-- Deduplication keys (idempotency keys, unique keys, claim keys) and lane locks.
--
-- Keys have 256 lanes of their own, which belong to no queue. The primary key makes concurrent
-- transactions with the same key wait for each other. Lock order: see leases.sql.

-- fragment: locked_lane
SELECT lane
FROM lane_locks
WHERE lane = :lane
FOR UPDATE

-- name: acquire_idempotency_key
-- Acquires a key by inserting it, or by replacing an expired one. Returns no row if the key was
-- used before. Concurrent transactions with the same key wait here for each other's commit.
-- `fingerprint` is the digest of the request's body.
INSERT INTO deduplication_keys (lane, digest, fingerprint, response, expires_at)
VALUES (:lane, :digest, :body_digest, :response, :expires_at)
ON CONFLICT (lane, digest) DO UPDATE
SET fingerprint = excluded.fingerprint, response = excluded.response, expires_at = excluded.expires_at
WHERE deduplication_keys.expires_at <= :retention_now
RETURNING digest;

-- name: read_idempotency_key
SELECT fingerprint AS body_digest, response
FROM deduplication_keys
WHERE lane = :lane AND digest = :digest;

-- name: stored_response
-- Returns the response that is stored with a key. Takes no lock.
SELECT response
FROM deduplication_keys
WHERE lane = :lane AND digest = :digest;

-- name: lock_claim_key
-- Serializes the claims with the same key: the row stays locked until the claim is committed.
-- Returns the receipt of the first claim, or NULL if this claim is the first.
INSERT INTO deduplication_keys (lane, digest, expires_at)
VALUES (:lane, :digest, :expires_at)
ON CONFLICT (lane, digest) DO UPDATE
SET expires_at = excluded.expires_at
RETURNING response;

-- name: write_key_response
-- Stores the response of a call in the row of its key, which the transaction has locked.
UPDATE deduplication_keys
SET response = :response
WHERE lane = :lane AND digest = :digest;

-- name: lock_unique_keys
-- row: UniqueRow
-- Serializes the enqueues with the same unique key: inserts the missing rows, and locks all rows. A
-- key without a job_id is free.
INSERT INTO deduplication_keys (lane, digest, expires_at)
SELECT :lane, input.digest, :expires_at
FROM unnest(:digests::uuid[]) AS input (digest)
ORDER BY input.digest
ON CONFLICT (lane, digest) DO UPDATE
SET digest = excluded.digest
RETURNING digest, job_id, response, expires_at;

-- name: assign_unique_keys
-- Stores which jobs have these keys, and for how long. The column `response` stores :held_for:
-- `window` (until expires_at) or `life` (while the job waits or runs).
UPDATE deduplication_keys
SET job_id = input.job_id, response = input.held_for, expires_at = input.expires_at
FROM unnest(:digest::uuid[], :job_id::uuid[], :held_for::text[], :expires_at::timestamptz[])
    AS input (digest, job_id, held_for, expires_at)
WHERE deduplication_keys.lane = :lane
    AND deduplication_keys.digest = ANY(:digest::uuid[])
    AND deduplication_keys.digest = input.digest;

-- name: expired_keys
-- row: ExpiredKey
-- Reads a range at the start of the index deduplication_keys_expires_at. Returns a job_id only for
-- a unique key that lasts as long as its job. Such a key is deleted only if its job is no longer
-- live.
SELECT lane, digest, CASE WHEN response = 'life' THEN job_id END AS job_id
FROM deduplication_keys
WHERE expires_at < :now
ORDER BY expires_at
LIMIT :limit;

-- name: delete_keys
-- Deletes expired keys, except those that another transaction has acquired again in the meantime.
DELETE FROM deduplication_keys
WHERE lane = :lane AND digest = ANY(:digests::uuid[]) AND expires_at < :now;

-- name: extend_keys
-- Delays the next check of a unique key whose job still waits or runs.
UPDATE deduplication_keys
SET expires_at = :until
WHERE lane = :lane AND digest = ANY(:digests::uuid[]) AND expires_at < :now;

-- name: lock_lane
-- Acquires a lane lock, a queue lock or a caller lock. Serializes, until their commit, the
-- transactions that count jobs before they claim, admit or insert more.
{{locked_lane}};

-- name: try_lock_lane
-- Like `lock_lane`, but does not wait: returns no row if another transaction holds the lock.
{{locked_lane}} SKIP LOCKED;

-- name: lane_lock_exists
SELECT EXISTS (SELECT FROM lane_locks WHERE lane = :lane);

-- name: create_lane_lock
INSERT INTO lane_locks (lane)
VALUES (:lane)
ON CONFLICT DO NOTHING;
