-- Each is made anew: one whose making was interrupted would stay behind unusable.

-- Jobs that wait for their turn, by group and age. In a fair queue jobs without a group are a group too.
DROP INDEX CONCURRENTLY IF EXISTS jobs_parked;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_parked ON jobs (lane, coalesce(group_key, ''), id) WHERE state = 'parked';

-- Jobs that have their turn, by group: how many there are, and which number was the last of a priority.
DROP INDEX CONCURRENTLY IF EXISTS jobs_turns;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_turns ON jobs (lane, coalesce(group_key, ''), priority, turn) WHERE turn IS NOT NULL;

-- The claim of a fair queue reads this one.
DROP INDEX CONCURRENTLY IF EXISTS jobs_in_turn;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_in_turn ON jobs (lane, priority DESC, turn, id) WHERE state = 'ready' AND turn IS NOT NULL;

-- Leases that count against max_running.
DROP INDEX CONCURRENTLY IF EXISTS jobs_slots;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_slots ON jobs (lane) WHERE slot;

-- Jobs that are dead if nobody has started them by then.
DROP INDEX CONCURRENTLY IF EXISTS jobs_expiring;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL AND lease_expires_at IS NULL;
