-- Enqueues a job in the caller's own transaction, for services that share the database. Does in SQL
-- what app/enqueue does for HTTP; tests compare both (tests/sql/enqueue).
--
--  * Never NOTIFY: it takes a cluster-wide lock at the caller's commit. The brokers' periodic polls
--    find the job within a second.
--  * Locks are held until the caller's commit. Lock order: see app/leases/leases.sql.
--  * Limits that are settings for HTTP have their default values here: SQL does not know the
--    brokers' settings.
--  * No string has a backslash unless it begins with E: callers may have
--    standard_conforming_strings off.

-- Like shared_digest in app/db/lanes.py.
CREATE FUNCTION longshore_digest(what text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN encode(substr(sha256(convert_to(what, 'UTF8')), 1, 16), 'hex')::uuid;
END
$$;

-- Like lane_of in app/db/lanes.py: the 24 bits from the 67th on.
CREATE FUNCTION longshore_lane(job_id uuid) RETURNS int
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    bytes bytea := uuid_send(job_id);
BEGIN
    RETURN ((get_byte(bytes, 8) & 63) << 18) + (get_byte(bytes, 9) << 10) + (get_byte(bytes, 10) << 2) + (get_byte(bytes, 11) >> 6);
END
$$;

-- Like JobIdGenerator in app/db/lanes.py, with the microseconds instead of its counter.
CREATE FUNCTION longshore_id(home_lane int, minted_at timestamptz) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    micros bigint := extract(epoch FROM minted_at) * 1000000;
    fraction bigint := micros % 1000 * 4096 / 1000;
    dice bigint := ('x' || right(gen_random_uuid()::text, 10))::bit(40)::bigint & ((1::bigint << 38) - 1);
BEGIN
    RETURN lpad(to_hex(micros / 1000), 12, '0') || '7' || lpad(to_hex(fraction), 3, '0')
        || to_hex((1::bigint << 63) | (home_lane::bigint << 38) | dice);
END
$$;

-- Like app/http/strict_json.py: the problem of a document that Postgres accepts but other parsers
-- reject or read differently. NULL: no problem.
CREATE FUNCTION longshore_json_fault(document json, most_bytes int) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    string CONSTANT text := E'"(?:[^"\\\\]|\\\\.)*"';
    sent text := document::text;
    bare text;
    opened int;
    deepest int;
    meant text;
BEGIN
    IF octet_length(sent) > most_bytes THEN
        RETURN format('has %s bytes, at most %s are taken', octet_length(sent), most_bytes);
    END IF;
    bare := regexp_replace(sent, string, '', 'g');
    opened := length(bare) - length(translate(bare, '[{', ''));
    IF opened + length(bare) - length(replace(bare, ',', '')) >= 10000 THEN
        RETURN 'more than 10000 values';
    END IF;
    IF opened > 64 THEN
        SELECT max(depth)
        INTO deepest
        FROM (
            SELECT sum(CASE WHEN bracket IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY place) AS depth
            FROM string_to_table(regexp_replace(bare, '[^][{}]', '', 'g'), NULL) WITH ORDINALITY AS brackets (bracket, place)
        ) AS depths;
        IF deepest > 64 THEN
            RETURN 'nested deeper than 64';
        END IF;
    END IF;
    IF bare ~ '[-+.0-9eE]{65}' THEN
        RETURN 'a number of more than 64 digits';
    END IF;
    BEGIN
        meant := sent::jsonb::text;
    EXCEPTION
        WHEN data_exception OR program_limit_exceeded THEN
            RETURN SQLERRM;  -- a NUL character, an unpaired surrogate, a number out of range
    END;
    IF EXISTS (
        SELECT
        FROM regexp_matches(bare, '[.0-9]+[eE][+]?[0-9]+', 'g') AS numbers (parts)
        WHERE parts[1]::numeric > 1.7976931348623158079e308
    ) THEN
        RETURN 'a number that no double can hold';
    END IF;
    meant := regexp_replace(meant, string, '', 'g');
    IF length(bare) - length(replace(bare, ':', '')) <> length(meant) - length(replace(meant, ':', '')) THEN
        RETURN 'the same key stands twice in one object';
    END IF;
    RETURN NULL;
END
$$;

-- Like RetryPolicy in app/queues/schemas.py.
CREATE FUNCTION longshore_retry_fault(retry json) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    fault text := longshore_json_fault(retry, 1024);
BEGIN
    IF fault IS NULL AND json_typeof(retry) <> 'object' THEN
        RETURN 'an object';
    ELSIF fault IS NULL THEN
        SELECT CASE
            WHEN known.name IS NULL THEN format('no field %s', sent.name)
            ELSE format('%s is a number from %s to %s', known.name, known.lowest, known.highest)
        END
        INTO fault
        FROM json_each(retry) AS sent (name, value)
        LEFT JOIN (VALUES ('base_seconds', 0, 31622400), ('factor', 1, 1000), ('max_seconds', 0, 31622400), ('jitter', 0, 1))
            AS known (name, lowest, highest) ON known.name = sent.name
        WHERE CASE
            WHEN known.name IS NULL OR json_typeof(sent.value) <> 'number' THEN true
            ELSE sent.value::text::numeric NOT BETWEEN known.lowest AND known.highest
        END
        LIMIT 1;
    END IF;
    RETURN fault;
END
$$;

-- Like app/queues/creator.py: creates an unknown queue. A deleted queue is restored by the first
-- broker that finds a job in it. Transactions that create the same queue wait for this commit.
CREATE FUNCTION longshore_queue(called text) RETURNS queues
LANGUAGE plpgsql
AS $$
DECLARE
    known queues;
BEGIN
    FOR tries IN 1..20 LOOP
        SELECT * INTO known FROM queues WHERE name = called;
        IF known.id IS NOT NULL THEN
            RETURN known;  -- also if deleted: brokers restore it when they find a job in it, and no call waits for this commit
        ELSIF (SELECT count(*) FROM queues WHERE deleted_at IS NULL) >= 10000 THEN
            RAISE EXCEPTION USING ERRCODE = 'configuration_limit_exceeded', MESSAGE = 'there are 10000 queues already', COLUMN = 'queue';
        END IF;
        BEGIN
            INSERT INTO queues (id, name)
            SELECT least(coalesce(max(id), 0) + 1, 65535), called
            FROM queues
            ON CONFLICT (name) DO NOTHING;
        EXCEPTION
            WHEN unique_violation THEN
                NULL;  -- a concurrent transaction has used the id for another queue
        END;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'configuration_limit_exceeded', MESSAGE = 'the queue could not be made', COLUMN = 'queue';
END
$$;

-- Like needs_admission in app/queues/cache.py: whether a job of this group waits for admission. In
-- doubt it does: pending jobs are checked periodically.
CREATE FUNCTION longshore_parks(home queues, home_lane int, called text) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    rules jsonb := home.config;
BEGIN
    RETURN coalesce((rules ->> 'fair')::boolean, false)
        OR (called IS NOT NULL AND rules ? 'max_running_per_group')
        OR EXISTS (SELECT FROM rests WHERE lane = home_lane AND group_key = coalesce(called, ''));
END
$$;

-- Like app/enqueue/uniqueness.py: the job that has the key, if any. Locks the key: other enqueues
-- with this key, over HTTP or SQL, wait for this commit.
CREATE FUNCTION longshore_key_holder(wanted_key uuid, asked_at timestamptz) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    held keys;
    job_lane int;
BEGIN
    INSERT INTO keys (lane, digest, expires_at)
    VALUES (get_byte(uuid_send(wanted_key), 15), wanted_key, asked_at + make_interval(hours => 24))
    ON CONFLICT (lane, digest) DO UPDATE
    SET digest = excluded.digest
    RETURNING *
    INTO held;
    IF held.job_id IS NULL OR (held.answer = 'window' AND held.expires_at <= asked_at) THEN
        RETURN NULL;
    END IF;
    job_lane := longshore_lane(held.job_id);
    IF EXISTS (SELECT FROM jobs WHERE lane = job_lane AND id = held.job_id) OR held.answer = 'window' AND (
        EXISTS (SELECT FROM finished_jobs WHERE lane = job_lane AND id = held.job_id AND keep_until > asked_at)
        OR EXISTS (SELECT FROM dead_letters WHERE lane = job_lane AND id = held.job_id)
    ) THEN
        RETURN held.job_id;
    END IF;
    RETURN NULL;
END
$$;

-- scheduled | blocked | ready | parked -> scheduled | blocked | ready | parked (with another body)
-- Like replace_waiting in app/jobs/jobs.sql.
CREATE FUNCTION longshore_replace(existing uuid, wanted jobs, home queues, asked_at timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    job_lane int := longshore_lane(existing);
    before jobs;
    after text;
BEGIN
    SELECT * INTO before FROM jobs WHERE lane = job_lane AND id = existing AND lease_expires_at IS NULL FOR UPDATE;
    IF before.id IS NULL THEN
        RETURN;  -- the job is running, so it is not changed
    END IF;
    after := CASE
        WHEN before.state = 'blocked' THEN 'blocked'
        WHEN wanted.run_at > asked_at THEN 'scheduled'
        WHEN before.state IN ('ready', 'parked') THEN before.state
        WHEN before.turn IS NOT NULL THEN 'ready'
        WHEN longshore_parks(home, job_lane, before.group_key) THEN 'parked'
        ELSE 'ready'
    END;
    UPDATE jobs
    SET state = after,
        turn = CASE WHEN wanted.run_at <= asked_at OR before.state = 'scheduled' THEN turn END,
        state_reason = CASE WHEN after = 'blocked' THEN state_reason END,
        run_at = wanted.run_at, priority = wanted.priority, max_attempts = wanted.max_attempts, job_type = wanted.job_type,
        lease_seconds = wanted.lease_seconds, retry = wanted.retry, tags = wanted.tags, metadata = wanted.metadata,
        payload = wanted.payload, expires_at = wanted.expires_at, timeout_seconds = wanted.timeout_seconds,
        traceparent = wanted.traceparent, tracestate = wanted.tracestate, checkpoint = NULL, progress = NULL,
        lease_token = CASE WHEN settled_as IS NOT NULL THEN lease_token END
    WHERE lane = job_lane AND id = existing;
    IF after <> before.state THEN
        INSERT INTO stat_deltas (lane, at, ready, scheduled)
        VALUES (
            job_lane,
            asked_at,
            (after IN ('ready', 'parked'))::int - (before.state IN ('ready', 'parked'))::int,
            (after = 'scheduled')::int - (before.state = 'scheduled')::int
        );
    END IF;
END
$$;

-- Like _enforce_max_waiting in app/enqueue/service.py. The queue lock makes counting and inserting
-- atomic. It is held until this commit.
CREATE FUNCTION longshore_check_room(home queues) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    first_lane int := home.id << 8;
    door int := -home.id;
    most bigint := home.config::jsonb ->> 'max_waiting';
    waiting bigint;
BEGIN
    IF most IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM gates WHERE lane = door FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO gates (lane) VALUES (door) ON CONFLICT DO NOTHING;
        PERFORM FROM gates WHERE lane = door FOR UPDATE;
    END IF;
    SELECT coalesce(sum(scheduled + blocked + ready), 0)
    INTO waiting
    FROM (
        SELECT scheduled, blocked, ready
        FROM stat_totals
        WHERE lane >= first_lane AND lane < first_lane + home.lanes
        UNION ALL
        SELECT scheduled, blocked, ready
        FROM stat_deltas
        WHERE lane >= first_lane AND lane < first_lane + home.lanes
    ) AS parts;
    IF waiting >= most THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = format('%s jobs may wait in %s, and as many do', most, home.name),
            COLUMN = 'queue';
    END IF;
END
$$;

-- (any) -> (the same, with dependents)
-- Like app/enqueue/parents.py: returns the parents that exist. A parent without `ended` is
-- unfinished and cannot finish before this commit.
CREATE FUNCTION longshore_await(parents uuid[], asked_at timestamptz) RETURNS TABLE (parent uuid, ended text)
LANGUAGE plpgsql
AS $$
DECLARE
    job_lane int;
    ids uuid[];
BEGIN
    FOR job_lane, ids IN
        SELECT longshore_lane(named), array_agg(named) FROM unnest(parents) AS named GROUP BY 1 ORDER BY 1
    LOOP
        PERFORM FROM jobs WHERE lane = job_lane AND id = ANY(ids) ORDER BY id FOR UPDATE;
        RETURN QUERY UPDATE jobs SET awaited = true WHERE lane = job_lane AND id = ANY(ids) RETURNING id, NULL::text;
        RETURN QUERY
        SELECT id, state
        FROM finished_jobs
        WHERE lane = job_lane AND id = ANY(ids) AND keep_until > asked_at
        UNION ALL
        SELECT id, 'dead'
        FROM dead_letters
        WHERE lane = job_lane AND id = ANY(ids);
    END LOOP;
END
$$;

-- (nothing) -> ready | parked | scheduled | blocked | cancelled
--
-- Returns the id of the new job, or of the existing job with the same unique key. NULL means
-- absent; a JSON null is a payload. The payload is stored as written. The schema of its job type is
-- not applied.
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

-- A SECURITY DEFINER function uses objects of this schema only, and its caller's temporary tables
-- last. Only grantees may call it.
REVOKE EXECUTE ON FUNCTION longshore_digest, longshore_lane, longshore_id, longshore_json_fault, longshore_retry_fault, longshore_queue,
    longshore_parks, longshore_key_holder, longshore_replace, longshore_check_room, longshore_await, longshore_enqueue_v1
FROM PUBLIC;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION longshore_enqueue_v1 SET search_path = %I, pg_temp', current_schema());
END
$$;

-- One role may call it. Roles belong to the whole server: another database may have created it
-- already, or may be creating it now.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_producer') THEN
        CREATE ROLE longshore_producer NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        RAISE NOTICE 'the role longshore_producer is there already';
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'no right to create the role longshore_producer: grant EXECUTE on longshore_enqueue_v1 to a role of your choice';
END
$$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'longshore_producer') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO longshore_producer', current_schema());
        GRANT EXECUTE ON FUNCTION longshore_enqueue_v1 TO longshore_producer;
    END IF;
END
$$;
