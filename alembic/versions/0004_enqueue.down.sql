DROP FUNCTION longshore_enqueue_v1(
    text, json, text, int, timestamptz, int, text, text, int, text, int, json, int, int, timestamptz, text[], json, uuid[], text, text, text
);
DROP FUNCTION longshore_await(uuid[], timestamptz);
DROP FUNCTION longshore_check_room(queues);
DROP FUNCTION longshore_replace(uuid, jobs, queues, timestamptz);
DROP FUNCTION longshore_key_holder(uuid, timestamptz);
DROP FUNCTION longshore_parks(queues, int, text);
DROP FUNCTION longshore_queue(text);
DROP FUNCTION longshore_retry_fault(json);
DROP FUNCTION longshore_json_fault(json, int);
DROP FUNCTION longshore_id(int, timestamptz);
DROP FUNCTION longshore_lane(uuid);
DROP FUNCTION longshore_digest(text);

-- The role stays: it belongs to the whole server, and logins of other services are members of it.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_producer') THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM longshore_producer', current_schema());
    END IF;
END
$$;
