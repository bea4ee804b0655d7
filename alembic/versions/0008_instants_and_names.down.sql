-- longshore_enqueue_v1 as created by 0004.
--
-- (nothing) -> ready | parked | scheduled | blocked | cancelled
--
-- Returns the id of the new job, or of the existing job with the same unique key. NULL means
-- absent; a JSON null is a payload. The payload is stored as written. The schema of its job type is
-- not applied.
CREATE OR REPLACE FUNCTION longshore_enqueue_v1(
    job_type text,
    payload json DEFAULT '{}',
    queue text DEFAULT 'default',
    priority int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay_seconds int DEFAULT NULL,
    group_key text DEFAULT NULL,
    unique_key text DEFAULT NULL,
    unique_for_seconds int DEFAULT NULL,
    on_duplicate text DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    retry json DEFAULT NULL,
    lease_seconds int DEFAULT NULL,
    timeout_seconds int DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    tags text[] DEFAULT NULL,
    metadata json DEFAULT NULL,
    depends_on uuid[] DEFAULT NULL,
    on_parent_failure text DEFAULT NULL,
    traceparent text DEFAULT NULL,
    tracestate text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    asked_at timestamptz := clock_timestamp();
    first_instant CONSTANT timestamptz := '0001-01-01 00:00:00+00';
    horizon timestamptz := asked_at + make_interval(secs => 31622400);
    fault text;
    home queues;
    rules jsonb;
    kind jsonb;
    wanted jobs;
    wanted_key uuid;
    existing uuid;
    known uuid[];
    failed boolean;
BEGIN
    -- Like JobCreate in app/jobs/schemas.py and find_faults in app/enqueue/defaults.py.
    fault := coalesce(
        CASE
            WHEN job_type IS NULL OR job_type !~ '^[A-Za-z0-9._:-]{1,120}$' THEN 'job_type: 1 to 120 of A-Z a-z 0-9 . _ : -'
            WHEN queue !~ '^[A-Za-z0-9._:-]{1,120}$' THEN 'queue: 1 to 120 of A-Z a-z 0-9 . _ : -'
            WHEN group_key !~ '^[A-Za-z0-9._:-]{1,120}$' THEN 'group_key: 1 to 120 of A-Z a-z 0-9 . _ : -'
            WHEN priority NOT BETWEEN -32768 AND 32767 THEN 'priority: -32768 to 32767'
            WHEN run_at IS NOT NULL AND delay_seconds IS NOT NULL THEN 'delay_seconds: either run_at or delay_seconds, not both'
            WHEN run_at > horizon THEN 'run_at: more than 31622400 seconds ahead'
            WHEN run_at < first_instant THEN 'run_at: before the year 1 in UTC'
            WHEN delay_seconds NOT BETWEEN 0 AND 31622400 THEN 'delay_seconds: 0 to 31622400'
            WHEN char_length(unique_key) NOT BETWEEN 1 AND 200 THEN 'unique_key: 1 to 200 characters'
            WHEN unique_key IS NULL AND unique_for_seconds IS NOT NULL THEN 'unique_for_seconds: there is no unique_key'
            WHEN unique_key IS NULL AND on_duplicate IS NOT NULL THEN 'on_duplicate: there is no unique_key'
            WHEN unique_for_seconds NOT BETWEEN 1 AND 31622400 THEN 'unique_for_seconds: 1 to 31622400'
            WHEN on_duplicate NOT IN ('return_existing', 'reject', 'replace') THEN 'on_duplicate: return_existing, reject or replace'
            WHEN on_duplicate = 'replace' AND depends_on IS NOT NULL
                THEN 'on_duplicate: a job that is replaced keeps what it waits for: not with depends_on'
            WHEN max_attempts NOT BETWEEN 1 AND 1000 THEN 'max_attempts: 1 to 1000'
            WHEN lease_seconds NOT BETWEEN 1 AND 86400 THEN 'lease_seconds: 1 to 86400'
            WHEN timeout_seconds NOT BETWEEN 1 AND 2592000 THEN 'timeout_seconds: 1 to 2592000'
            WHEN expires_at > horizon THEN 'expires_at: more than 31622400 seconds ahead'
            WHEN expires_at < first_instant THEN 'expires_at: before the year 1 in UTC'
            WHEN cardinality(tags) > 32 OR array_ndims(tags) > 1 THEN 'tags: at most 32, in one dimension'
            WHEN EXISTS (SELECT FROM unnest(tags) AS tag WHERE tag IS NULL OR char_length(tag) NOT BETWEEN 1 AND 120)
                THEN 'tags: each of 1 to 120 characters'
            WHEN cardinality(depends_on) > 1000 OR array_ndims(depends_on) > 1 THEN 'depends_on: at most 1000, in one dimension'
            WHEN array_position(depends_on, NULL) IS NOT NULL THEN 'depends_on: one is NULL'
            WHEN on_parent_failure NOT IN ('cancel', 'run') THEN 'on_parent_failure: cancel or run'
            WHEN on_parent_failure IS NOT NULL AND depends_on IS NULL
                THEN 'on_parent_failure: says what to do with depends_on, and there is none'
            WHEN char_length(traceparent) > 512 THEN 'traceparent: at most 512 characters'
            WHEN char_length(tracestate) > 512 THEN 'tracestate: at most 512 characters'
        END,
        'payload: ' || longshore_json_fault(payload, 262144),
        'retry: ' || longshore_retry_fault(retry),
        'metadata: ' || longshore_json_fault(metadata, 16384),
        CASE
            WHEN json_typeof(metadata) <> 'object' THEN 'metadata: an object'
            WHEN (SELECT count(*) > 64 FROM json_object_keys(metadata)) THEN 'metadata: at most 64 members'
        END
    );
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = fault, COLUMN = split_part(fault, ':', 1);
    END IF;

    -- Like JobDefaults in app/enqueue/defaults.py: the job, then its type, its queue, the default of the settings.
    home := longshore_queue(coalesce(queue, 'default'));
    rules := home.config;
    SELECT job_types.config::jsonb - 'payload_schema' INTO kind FROM job_types WHERE name = longshore_enqueue_v1.job_type;
    wanted.job_type := job_type;
    wanted.group_key := group_key;
    wanted.unique_key := unique_key;
    wanted.payload := coalesce(payload, '{}');
    wanted.tags := array_to_json(tags);
    wanted.metadata := metadata;
    wanted.traceparent := traceparent;
    wanted.tracestate := tracestate;
    wanted.expires_at := expires_at;
    wanted.priority := coalesce(priority, (rules ->> 'default_priority')::int, 0);
    wanted.max_attempts := coalesce(
        max_attempts,
        (kind ->> 'max_attempts')::int,
        (kind -> 'retry' ->> 'max_attempts')::int,
        (rules ->> 'default_max_attempts')::int,
        5
    );
    wanted.lease_seconds := coalesce(lease_seconds, (kind ->> 'lease_seconds')::int, (rules ->> 'default_lease_seconds')::int);
    wanted.timeout_seconds := coalesce(timeout_seconds, (kind ->> 'timeout_seconds')::int);
    wanted.retry := nullif(
        coalesce(rules -> 'default_retry', '{}') || (coalesce(kind -> 'retry', '{}') - 'max_attempts') || coalesce(retry::jsonb, '{}'),
        '{}'
    );
    wanted.lane := (home.id << 8) + CASE
        WHEN group_key IS NULL THEN floor(random() * home.lanes)
        ELSE ('x' || left(longshore_digest(group_key)::text, 8))::bit(32)::bigint % home.group_lanes
    END;
    wanted.id := longshore_id(wanted.lane, asked_at);
    wanted.run_at := coalesce(
        run_at, asked_at + make_interval(secs => nullif(delay_seconds, 0)), date_trunc('milliseconds', asked_at)
    );
    wanted.state := CASE
        WHEN wanted.run_at > asked_at THEN 'scheduled'
        WHEN longshore_parks(home, wanted.lane, group_key) THEN 'parked'
        ELSE 'ready'
    END;

    IF unique_key IS NOT NULL THEN
        wanted_key := longshore_digest('unique' || chr(31) || home.id || chr(31) || unique_key);
        existing := longshore_key_holder(wanted_key, asked_at);
    END IF;
    IF existing IS NOT NULL AND on_duplicate = 'reject' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'unique_violation',
            MESSAGE = format('job %s has the unique_key', existing),
            DETAIL = existing,
            COLUMN = 'unique_key',
            CONSTRAINT = 'longshore_unique_key';
    ELSIF existing IS NOT NULL THEN
        IF on_duplicate = 'replace' THEN
            PERFORM longshore_replace(existing, wanted, home, asked_at);
        END IF;
        RETURN existing;
    END IF;

    PERFORM longshore_check_room(home);
    IF cardinality(depends_on) > 0 THEN
        wanted.depends_on := ARRAY(
            SELECT parent FROM unnest(depends_on) WITH ORDINALITY AS named (parent, place) GROUP BY parent ORDER BY min(place)
        );
        wanted.on_parent_failure := coalesce(on_parent_failure, 'cancel');
        SELECT array_agg(parent), array_agg(parent) FILTER (WHERE ended IS NULL), bool_or(ended IN ('dead', 'cancelled'))
        INTO known, wanted.awaits, failed
        FROM longshore_await(wanted.depends_on, asked_at);
        SELECT format('depends_on: there is no job %s', parent)
        INTO fault
        FROM unnest(wanted.depends_on) AS parent
        WHERE parent <> ALL(coalesce(known, '{}'))
        LIMIT 1;
        IF fault IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = fault, COLUMN = 'depends_on';
        ELSIF failed AND wanted.on_parent_failure = 'cancel' THEN
            wanted.state := 'cancelled';
            wanted.state_reason := 'dependency_failed';
        ELSIF wanted.awaits IS NOT NULL THEN
            wanted.state := 'blocked';
            wanted.state_reason := 'waiting_for_jobs';
        END IF;
    END IF;

    IF wanted.state = 'cancelled' THEN
        INSERT INTO finished_jobs (
            lane, id, state, state_reason, finished_at, keep_until, archive, attempt, crashes, deliveries, replay_count, run_at, priority,
            max_attempts, job_type, group_key, tags, metadata, traceparent, tracestate, payload, unique_key, depends_on
        )
        VALUES (
            wanted.lane, wanted.id, wanted.state, wanted.state_reason, asked_at,
            asked_at + make_interval(secs => coalesce((rules -> 'retention' ->> 'finished_seconds')::int, 604800)),
            coalesce(rules -> 'retention' ->> 'mode', 'drop') = 'detach', 0, 0, 0, 0, wanted.run_at, wanted.priority,
            wanted.max_attempts, wanted.job_type, wanted.group_key, wanted.tags, wanted.metadata, wanted.traceparent, wanted.tracestate,
            wanted.payload, wanted.unique_key, wanted.depends_on
        );
    ELSE
        INSERT INTO jobs (
            lane, id, state, state_reason, run_at, priority, max_attempts, job_type, group_key, lease_seconds, retry, tags, metadata,
            traceparent, tracestate, payload, expires_at, timeout_seconds, unique_key, on_parent_failure, awaits, depends_on
        )
        VALUES (
            wanted.lane, wanted.id, wanted.state, wanted.state_reason, wanted.run_at, wanted.priority, wanted.max_attempts,
            wanted.job_type, wanted.group_key, wanted.lease_seconds, wanted.retry, wanted.tags, wanted.metadata, wanted.traceparent,
            wanted.tracestate, wanted.payload, wanted.expires_at, wanted.timeout_seconds, wanted.unique_key, wanted.on_parent_failure,
            wanted.awaits, wanted.depends_on
        );
        INSERT INTO dependents (lane, parent, child)
        SELECT longshore_lane(awaited), awaited, wanted.id
        FROM unnest(wanted.awaits) AS awaited;
    END IF;
    INSERT INTO stat_deltas (lane, at, ready, scheduled, blocked, cancelled, enqueued)
    VALUES (
        wanted.lane, asked_at, (wanted.state IN ('ready', 'parked'))::int, (wanted.state = 'scheduled')::int,
        (wanted.state = 'blocked')::int, (wanted.state = 'cancelled')::int, 1
    );
    IF unique_key IS NOT NULL THEN
        UPDATE keys
        SET job_id = wanted.id,
            answer = CASE WHEN unique_for_seconds IS NULL THEN 'life' ELSE 'window' END,
            expires_at = asked_at + make_interval(secs => coalesce(unique_for_seconds, 86400))
        WHERE lane = get_byte(uuid_send(wanted_key), 15) AND digest = wanted_key;
    END IF;
    RETURN wanted.id;
END
$$;

-- CREATE OR REPLACE drops the settings made by ALTER FUNCTION and keeps the grants. The function
-- uses objects of this schema only, and the caller's temporary tables last.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION longshore_enqueue_v1 SET search_path = %I, pg_temp', current_schema());
END
$$;
