-- Dropped first: an interrupted CREATE INDEX CONCURRENTLY leaves an invalid index behind.
-- No comment here may contain a semicolon: the file is split at semicolons.

-- Leases that count against the quota of a key.
DROP INDEX CONCURRENTLY IF EXISTS jobs_held;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_held ON jobs (held_by) WHERE held_by IS NOT NULL AND lease_expires_at IS NOT NULL;
