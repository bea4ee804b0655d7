-- (nothing) -> ready | pending | scheduled | blocked | cancelled
--
-- Enqueues a job. Returns the id of the job, or of the existing job with the same unique key.
--
--  * An argument that is NULL counts as absent, but a JSON null is a payload.
--  * The payload is stored as written. The payload schema of the job type is not applied.
--  * Rejects the same arguments as the HTTP API, including times before 1970 and the names `.` and
--    `..`.
CREATE FUNCTION longshore_enqueue_v1(
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
    called_at timestamptz := clock_timestamp();
    earliest CONSTANT timestamptz := '1970-01-01 00:00:00+00';
    latest timestamptz := called_at + make_interval(secs => 31622400);
    fault text;
    queue_row queues;
    queue_config jsonb;
    type_config jsonb;
    job jobs;
    key_digest uuid;
    existing_id uuid;
    existing_parents uuid[];
    parent_failed boolean;
BEGIN
    -- The same checks as JobCreate in app/enqueue/schemas.py and _find_faults in
    -- app/enqueue/parser.py.
    fault := coalesce(
        CASE
            WHEN job_type IS NULL OR job_type !~ '^[A-Za-z0-9._:-]{1,120}$'
                THEN 'job_type: must be 1 to 120 of the characters A-Z a-z 0-9 . _ : -'
            WHEN queue !~ '^[A-Za-z0-9._:-]{1,120}$'
                THEN 'queue: must be 1 to 120 of the characters A-Z a-z 0-9 . _ : -'
            WHEN group_key !~ '^[A-Za-z0-9._:-]{1,120}$'
                THEN 'group_key: must be 1 to 120 of the characters A-Z a-z 0-9 . _ : -'
            WHEN job_type IN ('.', '..') THEN 'job_type: must be neither . nor ..'
            WHEN queue IN ('.', '..') THEN 'queue: must be neither . nor ..'
            WHEN group_key IN ('.', '..') THEN 'group_key: must be neither . nor ..'
            WHEN priority NOT BETWEEN -32768 AND 32767 THEN 'priority: must be from -32768 to 32767'
            WHEN run_at IS NOT NULL AND delay_seconds IS NOT NULL
                THEN 'delay_seconds: send either run_at or delay_seconds, not both'
            WHEN run_at > latest THEN 'run_at: must be at most 31622400 seconds ahead'
            WHEN run_at < earliest THEN 'run_at: must not be before 1970-01-01 00:00:00 UTC'
            WHEN delay_seconds NOT BETWEEN 0 AND 31622400 THEN 'delay_seconds: must be from 0 to 31622400'
            WHEN char_length(unique_key) NOT BETWEEN 1 AND 200 THEN 'unique_key: must have 1 to 200 characters'
            WHEN unique_key IS NULL AND unique_for_seconds IS NOT NULL THEN 'unique_for_seconds: requires unique_key'
            WHEN unique_key IS NULL AND on_duplicate IS NOT NULL THEN 'on_duplicate: requires unique_key'
            WHEN unique_for_seconds NOT BETWEEN 1 AND 31622400 THEN 'unique_for_seconds: must be from 1 to 31622400'
            WHEN on_duplicate NOT IN ('return_existing', 'reject', 'replace')
                THEN 'on_duplicate: must be return_existing, reject or replace'
            WHEN on_duplicate = 'replace' AND depends_on IS NOT NULL
                THEN 'on_duplicate: replace cannot be used with depends_on: a replaced job keeps its dependencies'
            WHEN max_attempts NOT BETWEEN 1 AND 1000 THEN 'max_attempts: must be from 1 to 1000'
            WHEN lease_seconds NOT BETWEEN 1 AND 86400 THEN 'lease_seconds: must be from 1 to 86400'
            WHEN timeout_seconds NOT BETWEEN 1 AND 2592000 THEN 'timeout_seconds: must be from 1 to 2592000'
            WHEN expires_at > latest THEN 'expires_at: must be at most 31622400 seconds ahead'
            WHEN expires_at < earliest THEN 'expires_at: must not be before 1970-01-01 00:00:00 UTC'
            WHEN cardinality(tags) > 32 OR array_ndims(tags) > 1 THEN 'tags: must be at most 32, in one dimension'
            WHEN EXISTS (SELECT FROM unnest(tags) AS tag WHERE tag IS NULL OR char_length(tag) NOT BETWEEN 1 AND 120)
                THEN 'tags: each must have 1 to 120 characters'
            WHEN cardinality(depends_on) > 1000 OR array_ndims(depends_on) > 1
                THEN 'depends_on: must be at most 1000, in one dimension'
            WHEN array_position(depends_on, NULL) IS NOT NULL THEN 'depends_on: must not contain NULL'
            WHEN on_parent_failure NOT IN ('cancel', 'run') THEN 'on_parent_failure: must be cancel or run'
            WHEN on_parent_failure IS NOT NULL AND depends_on IS NULL THEN 'on_parent_failure: requires depends_on'
            WHEN char_length(traceparent) > 512 THEN 'traceparent: must have at most 512 characters'
            WHEN char_length(tracestate) > 512 THEN 'tracestate: must have at most 512 characters'
        END,
        'payload: ' || longshore_find_json_fault(payload, 262144),
        'retry: ' || longshore_find_retry_fault(retry),
        'metadata: ' || longshore_find_json_fault(metadata, 16384),
        CASE
            WHEN json_typeof(metadata) <> 'object' THEN 'metadata: must be an object'
            WHEN (SELECT count(*) > 64 FROM json_object_keys(metadata)) THEN 'metadata: must have at most 64 members'
        END
    );
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value', MESSAGE = fault, COLUMN = split_part(fault, ':', 1);
    END IF;

    -- Like JobDefaults in app/enqueue/parser.py: the value of a field that the job omits comes from
    -- its job type, else from its queue, else from the default of the settings.
    queue_row := longshore_find_or_create_queue(coalesce(queue, 'default'));
    queue_config := queue_row.config;
    SELECT job_types.config::jsonb - 'payload_schema'
    INTO type_config
    FROM job_types
    WHERE name = longshore_enqueue_v1.job_type;
    job.job_type := job_type;
    job.group_key := group_key;
    job.unique_key := unique_key;
    job.payload := coalesce(payload, '{}');
    job.tags := array_to_json(tags);
    job.metadata := metadata;
    job.traceparent := traceparent;
    job.tracestate := tracestate;
    job.expires_at := expires_at;
    job.priority := coalesce(priority, (queue_config ->> 'default_priority')::int, 0);
    job.max_attempts := coalesce(
        max_attempts,
        (type_config ->> 'max_attempts')::int,
        (type_config -> 'retry' ->> 'max_attempts')::int,
        (queue_config ->> 'default_max_attempts')::int,
        5
    );
    job.lease_seconds := coalesce(
        lease_seconds, (type_config ->> 'lease_seconds')::int, (queue_config ->> 'default_lease_seconds')::int
    );
    job.timeout_seconds := coalesce(timeout_seconds, (type_config ->> 'timeout_seconds')::int);
    job.retry := nullif(
        coalesce(queue_config -> 'default_retry', '{}')
            || (coalesce(type_config -> 'retry', '{}') - 'max_attempts')
            || coalesce(retry::jsonb, '{}'),
        '{}'
    );
    job.lane := (queue_row.id << 8) + CASE
        WHEN group_key IS NULL THEN floor(random() * queue_row.lanes)
        ELSE ('x' || left(longshore_digest(group_key)::text, 8))::bit(32)::bigint % queue_row.group_lanes
    END;
    job.id := longshore_generate_id(job.lane, called_at);
    job.run_at := coalesce(
        run_at, called_at + make_interval(secs => nullif(delay_seconds, 0)), date_trunc('milliseconds', called_at)
    );
    job.state := CASE
        WHEN job.run_at > called_at THEN 'scheduled'
        WHEN longshore_needs_admission(queue_row, job.lane, group_key) THEN 'pending'
        ELSE 'ready'
    END;

    IF unique_key IS NOT NULL THEN
        key_digest := longshore_digest('unique' || chr(31) || queue_row.id || chr(31) || unique_key);
        existing_id := longshore_find_unique_key(key_digest, called_at);
    END IF;
    IF existing_id IS NOT NULL AND on_duplicate = 'reject' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'unique_violation',
            MESSAGE = format('job %s has this unique_key', existing_id),
            DETAIL = existing_id,
            COLUMN = 'unique_key',
            CONSTRAINT = 'longshore_unique_key';
    ELSIF existing_id IS NOT NULL THEN
        IF on_duplicate = 'replace' THEN
            PERFORM longshore_replace_waiting(existing_id, job, queue_row, called_at);
        END IF;
        RETURN existing_id;
    END IF;

    PERFORM longshore_check_max_waiting(queue_row);
    IF cardinality(depends_on) > 0 THEN
        job.depends_on := ARRAY(
            SELECT parent_id
            FROM unnest(depends_on) WITH ORDINALITY AS parents (parent_id, position)
            GROUP BY parent_id
            ORDER BY min(position)
        );
        job.on_parent_failure := coalesce(on_parent_failure, 'cancel');
        SELECT
            array_agg(parent_id),
            array_agg(parent_id) FILTER (WHERE final_state IS NULL),
            bool_or(final_state IN ('dead', 'cancelled'))
        INTO existing_parents, job.waiting_for, parent_failed
        FROM longshore_mark_parents(job.depends_on, called_at);
        SELECT format('depends_on: there is no job %s', parent_id)
        INTO fault
        FROM unnest(job.depends_on) AS parent_id
        WHERE parent_id <> ALL(coalesce(existing_parents, '{}'))
        LIMIT 1;
        IF fault IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = fault, COLUMN = 'depends_on';
        ELSIF parent_failed AND job.on_parent_failure = 'cancel' THEN
            job.state := 'cancelled';
            job.state_reason := 'dependency_failed';
        ELSIF job.waiting_for IS NOT NULL THEN
            job.state := 'blocked';
            job.state_reason := 'waiting_for_jobs';
        END IF;
    END IF;

    IF job.state = 'cancelled' THEN
        INSERT INTO finished_jobs (
            lane, id, state, state_reason, finished_at, keep_until, archive, attempt, crashes, deliveries, replay_count,
            run_at, priority, max_attempts, job_type, group_key, tags, metadata, traceparent, tracestate, unique_key,
            depends_on, payload
        )
        VALUES (
            job.lane, job.id, job.state, job.state_reason, called_at,
            called_at
                + make_interval(secs => coalesce((queue_config -> 'retention' ->> 'finished_seconds')::int, 604800)),
            coalesce(queue_config -> 'retention' ->> 'mode', 'drop') = 'detach', 0, 0, 0, 0,
            job.run_at, job.priority, job.max_attempts, job.job_type, job.group_key, job.tags, job.metadata,
            job.traceparent, job.tracestate, job.unique_key, job.depends_on, job.payload
        );
    ELSE
        INSERT INTO jobs (
            lane, id, state, state_reason, run_at, priority, max_attempts, job_type, group_key, lease_seconds, retry,
            tags, metadata, traceparent, tracestate, expires_at, timeout_seconds, unique_key, on_parent_failure,
            waiting_for, depends_on, payload
        )
        VALUES (
            job.lane, job.id, job.state, job.state_reason, job.run_at, job.priority, job.max_attempts, job.job_type,
            job.group_key, job.lease_seconds, job.retry, job.tags, job.metadata, job.traceparent, job.tracestate,
            job.expires_at, job.timeout_seconds, job.unique_key, job.on_parent_failure, job.waiting_for, job.depends_on,
            job.payload
        );
        INSERT INTO dependents (lane, parent_id, child_id)
        SELECT longshore_lane_of(parent_id), parent_id, job.id
        FROM unnest(job.waiting_for) AS parent_id;
    END IF;
    IF job.state = 'ready' THEN
        INSERT INTO ready_spans (lane, priority, first_id, last_id)
        VALUES (job.lane, job.priority, job.id, job.id);
    END IF;
    INSERT INTO stat_deltas (lane, at, ready, scheduled, blocked, cancelled, enqueued)
    VALUES (
        job.lane, called_at, (job.state IN ('ready', 'pending'))::int, (job.state = 'scheduled')::int,
        (job.state = 'blocked')::int, (job.state = 'cancelled')::int, 1
    );
    IF unique_key IS NOT NULL THEN
        UPDATE deduplication_keys
        SET job_id = job.id,
            response = CASE WHEN unique_for_seconds IS NULL THEN 'life' ELSE 'window' END,
            expires_at = called_at + make_interval(secs => coalesce(unique_for_seconds, 86400))
        WHERE lane = get_byte(uuid_send(key_digest), 15) AND digest = key_digest;
    END IF;
    RETURN job.id;
END
$$;

-- longshore_enqueue_v1 is SECURITY DEFINER, so it must find only objects of this schema: it
-- searches the temporary tables of its caller last. Only roles that were granted EXECUTE may call
-- it.
REVOKE EXECUTE ON FUNCTION longshore_digest, longshore_lane_of, longshore_generate_id, longshore_find_json_fault,
    longshore_find_retry_fault, longshore_find_or_create_queue, longshore_needs_admission, longshore_lagging_time,
    longshore_find_unique_key, longshore_replace_waiting, longshore_check_max_waiting, longshore_mark_parents,
    longshore_enqueue_v1
FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION longshore_enqueue_v1 SET search_path = %I, pg_temp', current_schema());
END
$$;
