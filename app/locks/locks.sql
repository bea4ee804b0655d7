-- Keys live on 256 lanes of their own; the primary key makes rivals wait for each other. Order of locks: see leases.sql.

-- name: acquire_idempotency_key
-- A key is taken by inserting it, or by taking over one whose time has passed. Rivals wait here for each other's commit.
INSERT INTO keys (lane, digest, fingerprint, answer, expires_at)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (lane, digest) DO UPDATE
SET fingerprint = excluded.fingerprint, answer = excluded.answer, expires_at = excluded.expires_at
WHERE keys.expires_at <= $6
RETURNING digest;

-- name: read_idempotency_key
SELECT fingerprint, answer
FROM keys
WHERE lane = $1 AND digest = $2;

-- name: stored_response
SELECT answer
FROM keys
WHERE lane = $1 AND digest = $2;

-- name: lock_claim_key
-- Claims with one key are serialised here: the row stays locked until the claim has committed.
INSERT INTO keys (lane, digest, expires_at)
VALUES ($1, $2, $3)
ON CONFLICT (lane, digest) DO UPDATE
SET expires_at = excluded.expires_at
RETURNING answer;

-- name: write_claim_key
UPDATE keys
SET answer = $3
WHERE lane = $1 AND digest = $2;

-- name: lock_unique_keys
-- fills: UniqueRow
-- Enqueues with one unique key are serialised here. Without a job_id the key is free.
INSERT INTO keys (lane, digest, expires_at)
SELECT $1, sent.digest, $3
FROM unnest($2::uuid[]) AS sent (digest)
ORDER BY sent.digest
ON CONFLICT (lane, digest) DO UPDATE
SET digest = excluded.digest
RETURNING digest, job_id, answer, expires_at;

-- name: assign_unique_keys
-- The job that has the key from now on, and for how long: a window in time, or the life of the job.
UPDATE keys
SET job_id = sent.job_id, answer = sent.held_for, expires_at = sent.expires_at
FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[]) AS sent (digest, job_id, held_for, expires_at)
WHERE keys.lane = $1 AND keys.digest = ANY($2::uuid[]) AND keys.digest = sent.digest;

-- name: expired_keys
-- fills: ExpiredKey
-- A range at the start of keys_expires_at; with the job of those that it holds for as long as it lives.
SELECT lane, digest, CASE WHEN answer = 'life' THEN job_id END AS job_id
FROM keys
WHERE expires_at < $1
ORDER BY expires_at
LIMIT $2;

-- name: delete_keys
-- Unless somebody has taken the key anew meanwhile.
DELETE FROM keys
WHERE lane = $1 AND digest = ANY($2::uuid[]) AND expires_at < $3;

-- name: extend_keys
-- A unique key whose job still waits or runs is looked at again later.
UPDATE keys
SET expires_at = $4
WHERE lane = $1 AND digest = ANY($2::uuid[]) AND expires_at < $3;

-- name: lock_lane
-- Whoever decides how many may run, or wait, in this lane decides alone until his commit.
SELECT lane
FROM gates
WHERE lane = $1
FOR UPDATE;

-- name: try_gate
-- as: lock_lane
-- with: FOR UPDATE => FOR UPDATE SKIP LOCKED

-- name: gate_exists
SELECT EXISTS (SELECT FROM gates WHERE lane = $1);

-- name: make_gate
INSERT INTO gates (lane)
VALUES ($1)
ON CONFLICT DO NOTHING;
