-- Keeps the roles, because they belong to the whole server, and because logins of brokers and of
-- other services are members of these roles. Other roles to which grant_to_broker has granted
-- privileges keep their privilege on the schema.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_broker') THEN
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM longshore_broker', current_schema());
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM longshore_broker', current_schema());
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM longshore_broker', current_schema());
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_producer') THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM longshore_producer', current_schema());
    END IF;
END
$$;
DROP FUNCTION grant_to_broker(name);

DROP FUNCTION claim_jobs;
DROP FUNCTION longshore_enqueue_v1(
    text, json, text, int, timestamptz, int, text, text, int, text, int, json, int, int, timestamptz, text[], json,
    uuid[], text, text, text
);
DROP FUNCTION longshore_mark_parents(uuid[], timestamptz);
DROP FUNCTION longshore_check_max_waiting(queues);
DROP FUNCTION longshore_replace_waiting(uuid, jobs, queues, timestamptz);
DROP FUNCTION longshore_find_unique_key(uuid, timestamptz);
DROP FUNCTION longshore_lagging_time(text, timestamptz);
DROP FUNCTION longshore_needs_admission(queues, int, text);
DROP FUNCTION longshore_find_or_create_queue(text);
DROP FUNCTION longshore_find_retry_fault(json);
DROP FUNCTION longshore_find_json_fault(json, int);
DROP FUNCTION longshore_generate_id(int, timestamptz);
DROP FUNCTION longshore_lane_of(uuid);
DROP FUNCTION longshore_digest(text);
DROP FUNCTION retire_finished_partition(text, boolean);
DROP FUNCTION create_finished_partition(date, boolean);

DROP TABLE stat_durations, stat_rates, stat_totals, stat_deltas, finished_parents, dependents, group_cooldowns,
    rate_limit_usage, lane_locks, deduplication_keys, dead_letters, finished_jobs, lease_checks, ready_spans, jobs,
    leaders, poll_history, workers, clock_lags, config_versions, api_keys, schedules, job_types, queue_id_range,
    queues;
