DROP TABLE endings, dependents, rests, passes, gates, asks, versions, schedules, job_types;
ALTER TABLE keys DROP COLUMN job_id;
ALTER TABLE dead_letters DROP COLUMN timeout_seconds, DROP COLUMN unique_key, DROP COLUMN schedule, DROP COLUMN depends_on;
ALTER TABLE finished_jobs DROP COLUMN unique_key, DROP COLUMN schedule, DROP COLUMN depends_on;
ALTER TABLE jobs
    DROP COLUMN turn, DROP COLUMN slot, DROP COLUMN expires_at, DROP COLUMN timeout_seconds, DROP COLUMN deadline_at, DROP COLUMN awaited,
    DROP COLUMN awaits, DROP COLUMN on_parent_failure, DROP COLUMN unique_key, DROP COLUMN schedule, DROP COLUMN depends_on;
ALTER TABLE queues DROP COLUMN group_lanes, DROP COLUMN config, DROP COLUMN paused_at, DROP COLUMN paused_reason, DROP COLUMN deleted_at;
