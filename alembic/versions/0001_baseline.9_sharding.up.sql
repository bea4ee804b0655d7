-- What a cluster sharded by lane (Citus) needs of tables and functions. Without a cluster, it has
-- no effect.

-- While Citus moves a shard, it copies changes of the shard by logical replication. A table without
-- a primary key then rejects UPDATE and DELETE, and most moves are refused at once, unless the whole
-- row identifies a row. Servers with wal_level = replica log nothing more for it. Partitions of
-- finished_jobs get it from create_finished_partition.
ALTER TABLE stat_deltas REPLICA IDENTITY FULL;
ALTER TABLE rate_limit_usage REPLICA IDENTITY FULL;
ALTER TABLE finished_jobs REPLICA IDENTITY FULL;
ALTER TABLE finished_jobs_default REPLICA IDENTITY FULL;

-- Citus sends constants to its nodes as text in the style of the session, and a node reads them in
-- its own style. With SET datestyle = 'SQL, DMY', day and month were swapped on the node; with
-- standard_conforming_strings off, a backslash was lost. So functions that run in the session of
-- another service set both.
ALTER FUNCTION longshore_enqueue_v1 SET datestyle = 'ISO, MDY';
ALTER FUNCTION longshore_enqueue_v1 SET standard_conforming_strings = on;
ALTER FUNCTION create_finished_partition SET datestyle = 'ISO, MDY';
ALTER FUNCTION create_finished_partition SET standard_conforming_strings = on;
ALTER FUNCTION retire_finished_partition SET datestyle = 'ISO, MDY';
ALTER FUNCTION retire_finished_partition SET standard_conforming_strings = on;
