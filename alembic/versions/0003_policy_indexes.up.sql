-- Every index is dropped first: an interrupted CREATE INDEX CONCURRENTLY leaves an invalid index
-- behind. No comment here may contain a semicolon: the file is split at semicolons.

-- Pending jobs, which wait for admission, by group and age. In a fair queue the jobs without a
-- group form a group, too.
DROP INDEX CONCURRENTLY IF EXISTS jobs_parked;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_parked ON jobs (lane, coalesce(group_key, ''), id) WHERE state = 'parked';

-- Admitted jobs, by group: how many there are, and the last number of each priority.
DROP INDEX CONCURRENTLY IF EXISTS jobs_turns;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_turns ON jobs (lane, coalesce(group_key, ''), priority, turn) WHERE turn IS NOT NULL;

-- Read by claims of a fair queue.
DROP INDEX CONCURRENTLY IF EXISTS jobs_in_turn;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_in_turn ON jobs (lane, priority DESC, turn, id) WHERE state = 'ready' AND turn IS NOT NULL;

-- Leases that count against max_running.
DROP INDEX CONCURRENTLY IF EXISTS jobs_slots;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_slots ON jobs (lane) WHERE slot;

-- Jobs with a start deadline: they become dead if no worker has started them by then.
DROP INDEX CONCURRENTLY IF EXISTS jobs_expiring;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL AND lease_expires_at IS NULL;
