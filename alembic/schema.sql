CREATE FUNCTION public.grant_to_broker(grantee name) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    home CONSTANT name := current_schema();

BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', home, grantee);

    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE
        ON jobs, dead_letters, keys, leaders, workers, asks, job_types, schedules, passes, rests, dependents, endings,
            stat_deltas, stat_totals, stat_rates, stat_times
        TO %I',
        grantee
    );

    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON queues, gates, api_keys TO %I', grantee);

    EXECUTE format('GRANT SELECT, INSERT ON finished_jobs TO %I', grantee);

    EXECUTE format('GRANT SELECT, UPDATE ON versions TO %I', grantee);

    EXECUTE format('GRANT SELECT ON finished_jobs_default, alembic_version TO %I', grantee);

    EXECUTE format('GRANT EXECUTE ON FUNCTION make_finished_partition, retire_finished_partition TO %I', grantee);

END
$$;

CREATE FUNCTION public.longshore_await(parents uuid[], asked_at timestamp with time zone) RETURNS TABLE(parent uuid, ended text)
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

CREATE TABLE public.queues (
    id integer NOT NULL,
    name text NOT NULL,
    lanes smallint DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    group_lanes smallint DEFAULT 1 NOT NULL,
    config text DEFAULT '{}'::text NOT NULL,
    paused_at timestamp with time zone,
    paused_reason text,
    deleted_at timestamp with time zone,
    CONSTRAINT queues_id_check CHECK (((id >= 1) AND (id <= 65535))),
    CONSTRAINT queues_lanes_check CHECK (((lanes >= 1) AND (lanes <= 256)))
);

CREATE FUNCTION public.longshore_check_room(home public.queues) RETURNS void
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

CREATE FUNCTION public.longshore_digest(what text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    RETURN encode(substr(sha256(convert_to(what, 'UTF8')), 1, 16), 'hex')::uuid;

END
$$;

CREATE FUNCTION public.longshore_enqueue_v1(job_type text, payload json DEFAULT '{}'::json, queue text DEFAULT 'default'::text, priority integer DEFAULT NULL::integer, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay_seconds integer DEFAULT NULL::integer, group_key text DEFAULT NULL::text, unique_key text DEFAULT NULL::text, unique_for_seconds integer DEFAULT NULL::integer, on_duplicate text DEFAULT NULL::text, max_attempts integer DEFAULT NULL::integer, retry json DEFAULT NULL::json, lease_seconds integer DEFAULT NULL::integer, timeout_seconds integer DEFAULT NULL::integer, expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, tags text[] DEFAULT NULL::text[], metadata json DEFAULT NULL::json, depends_on uuid[] DEFAULT NULL::uuid[], on_parent_failure text DEFAULT NULL::text, traceparent text DEFAULT NULL::text, tracestate text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET search_path TO 'public', 'pg_temp'
    AS $_$
DECLARE
    asked_at timestamptz := clock_timestamp();

    first_instant CONSTANT timestamptz := '1970-01-01 00:00:00+00';

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
            WHEN job_type IN ('.', '..') THEN 'job_type: neither . nor ..'
            WHEN queue IN ('.', '..') THEN 'queue: neither . nor ..'
            WHEN group_key IN ('.', '..') THEN 'group_key: neither . nor ..'
            WHEN priority NOT BETWEEN -32768 AND 32767 THEN 'priority: -32768 to 32767'
            WHEN run_at IS NOT NULL AND delay_seconds IS NOT NULL THEN 'delay_seconds: either run_at or delay_seconds, not both'
            WHEN run_at > horizon THEN 'run_at: more than 31622400 seconds ahead'
            WHEN run_at < first_instant THEN 'run_at: before 1970-01-01 00:00:00 UTC'
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
            WHEN expires_at < first_instant THEN 'expires_at: before 1970-01-01 00:00:00 UTC'
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
$_$;

CREATE FUNCTION public.longshore_id(home_lane integer, minted_at timestamp with time zone) RETURNS uuid
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

CREATE FUNCTION public.longshore_json_fault(document json, most_bytes integer) RETURNS text
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

CREATE FUNCTION public.longshore_key_holder(wanted_key uuid, asked_at timestamp with time zone) RETURNS uuid
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

CREATE FUNCTION public.longshore_lane(job_id uuid) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    bytes bytea := uuid_send(job_id);

BEGIN
    RETURN ((get_byte(bytes, 8) & 63) << 18) + (get_byte(bytes, 9) << 10) + (get_byte(bytes, 10) << 2) + (get_byte(bytes, 11) >> 6);

END
$$;

CREATE FUNCTION public.longshore_parks(home public.queues, home_lane integer, called text) RETURNS boolean
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

CREATE FUNCTION public.longshore_queue(called text) RETURNS public.queues
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

CREATE TABLE public.jobs (
    lane integer NOT NULL,
    attempt smallint DEFAULT 0 NOT NULL,
    crashes smallint DEFAULT 0 NOT NULL,
    run_at timestamp with time zone NOT NULL,
    lease_expires_at timestamp with time zone,
    started_at timestamp with time zone,
    missing_since timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    lease_token uuid,
    deliveries integer DEFAULT 0 NOT NULL,
    state text NOT NULL,
    state_reason text,
    settled_as text,
    worker_id text,
    attempts text[],
    progress text,
    checkpoint text,
    id uuid NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    replay_count smallint DEFAULT 0 NOT NULL,
    job_type text NOT NULL,
    group_key text,
    lease_seconds integer,
    retry text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    replayed_from uuid,
    payload text NOT NULL,
    turn bigint,
    slot boolean,
    expires_at timestamp with time zone,
    timeout_seconds integer,
    deadline_at timestamp with time zone,
    awaited boolean,
    awaits uuid[],
    on_parent_failure text,
    unique_key text,
    schedule text,
    depends_on uuid[],
    held_by text
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0.5');

CREATE FUNCTION public.longshore_replace(existing uuid, wanted public.jobs, home public.queues, asked_at timestamp with time zone) RETURNS void
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

CREATE FUNCTION public.longshore_retry_fault(retry json) RETURNS text
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

CREATE FUNCTION public.make_finished_partition(day date, archived boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '200ms'
    SET search_path TO 'public', 'pg_temp'
    AS $$
DECLARE
    partition text := format('finished_jobs_%s%s', CASE WHEN archived THEN 'archive_' ELSE '' END, to_char(day, 'YYYYMMDD'));

BEGIN
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;

    END IF;

    EXECUTE format('CREATE TABLE %I (LIKE finished_jobs)', partition);

    EXECUTE format(
        'WITH moved AS (
            DELETE FROM finished_jobs_default
            WHERE archive = %L AND keep_until >= %L AND keep_until < %L
            RETURNING *
        )
        INSERT INTO %I SELECT * FROM moved',
        archived, day, day + 1, partition
    );

    EXECUTE format(
        'ALTER TABLE finished_jobs ATTACH PARTITION %I FOR VALUES FROM (%L, %L) TO (%L, %L)',
        partition, archived, day, archived, day + 1
    );

    RETURN true;

END
$$;

CREATE FUNCTION public.retire_finished_partition(partition text, archived boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET lock_timeout TO '200ms'
    SET search_path TO 'public', 'pg_temp'
    AS $_$
BEGIN
    IF partition !~ '^finished_jobs_(archive_)?[0-9]{8}$' OR to_regclass(partition) IS NULL THEN
        RETURN false;

    END IF;

    -- Counts before it locks: no row is added to a past day, and no transaction may wait while a whole day is counted.
    EXECUTE format(
        'INSERT INTO stat_deltas (lane, completed, cancelled)
        SELECT lane, -count(*) FILTER (WHERE state = ''completed''), -count(*) FILTER (WHERE state = ''cancelled'')
        FROM %I
        GROUP BY lane',
        partition
    );

    EXECUTE format('ALTER TABLE finished_jobs DETACH PARTITION %I', partition);

    IF NOT archived THEN
        EXECUTE format('DROP TABLE %I', partition);

    END IF;

    RETURN true;

END
$_$;

CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);

CREATE TABLE public.api_keys (
    id text NOT NULL,
    name text NOT NULL,
    mac bytea NOT NULL,
    scopes text[] NOT NULL,
    requests_per_second double precision,
    max_leases integer,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone
);

CREATE TABLE public.asks (
    queue text NOT NULL,
    job_type text NOT NULL,
    last_at timestamp with time zone NOT NULL
);

CREATE TABLE public.dead_letters (
    lane integer NOT NULL,
    id uuid NOT NULL,
    attempt smallint NOT NULL,
    crashes smallint NOT NULL,
    deliveries integer NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    replay_count smallint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    dead_at timestamp with time zone NOT NULL,
    lease_token uuid,
    settled_as text,
    reason text NOT NULL,
    error_type text,
    fingerprint text NOT NULL,
    worker_id text,
    job_type text NOT NULL,
    group_key text,
    lease_seconds integer,
    retry text,
    attempts text[],
    progress text,
    checkpoint text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    replayed_from uuid,
    payload text NOT NULL,
    timeout_seconds integer,
    unique_key text,
    schedule text,
    depends_on uuid[]
);

CREATE TABLE public.dependents (
    lane integer NOT NULL,
    parent uuid NOT NULL,
    child uuid NOT NULL
);

CREATE TABLE public.endings (
    lane integer NOT NULL,
    id uuid NOT NULL,
    state text NOT NULL
);

CREATE TABLE public.finished_jobs (
    lane integer NOT NULL,
    attempt smallint NOT NULL,
    crashes smallint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    keep_until timestamp with time zone NOT NULL,
    cancel_requested_at timestamp with time zone,
    deliveries integer NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    replay_count smallint NOT NULL,
    archive boolean NOT NULL,
    lease_token uuid,
    id uuid NOT NULL,
    state text NOT NULL,
    state_reason text,
    settled_as text,
    worker_id text,
    job_type text NOT NULL,
    group_key text,
    attempts text[],
    progress text,
    checkpoint text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    replayed_from uuid,
    result text,
    payload text NOT NULL,
    unique_key text,
    schedule text,
    depends_on uuid[]
)
PARTITION BY RANGE (archive, keep_until);

CREATE TABLE public.finished_jobs_default (
    lane integer CONSTRAINT finished_jobs_lane_not_null NOT NULL,
    attempt smallint CONSTRAINT finished_jobs_attempt_not_null NOT NULL,
    crashes smallint CONSTRAINT finished_jobs_crashes_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT finished_jobs_run_at_not_null NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone CONSTRAINT finished_jobs_finished_at_not_null NOT NULL,
    keep_until timestamp with time zone CONSTRAINT finished_jobs_keep_until_not_null NOT NULL,
    cancel_requested_at timestamp with time zone,
    deliveries integer CONSTRAINT finished_jobs_deliveries_not_null NOT NULL,
    priority smallint CONSTRAINT finished_jobs_priority_not_null NOT NULL,
    max_attempts smallint CONSTRAINT finished_jobs_max_attempts_not_null NOT NULL,
    replay_count smallint CONSTRAINT finished_jobs_replay_count_not_null NOT NULL,
    archive boolean CONSTRAINT finished_jobs_archive_not_null NOT NULL,
    lease_token uuid,
    id uuid CONSTRAINT finished_jobs_id_not_null NOT NULL,
    state text CONSTRAINT finished_jobs_state_not_null NOT NULL,
    state_reason text,
    settled_as text,
    worker_id text,
    job_type text CONSTRAINT finished_jobs_job_type_not_null NOT NULL,
    group_key text,
    attempts text[],
    progress text,
    checkpoint text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    replayed_from uuid,
    result text,
    payload text CONSTRAINT finished_jobs_payload_not_null NOT NULL,
    unique_key text,
    schedule text,
    depends_on uuid[]
);

CREATE TABLE public.gates (
    lane integer NOT NULL
);

CREATE TABLE public.job_types (
    name text NOT NULL,
    config text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.keys (
    lane integer NOT NULL,
    digest uuid NOT NULL,
    fingerprint uuid,
    answer text,
    expires_at timestamp with time zone NOT NULL,
    job_id uuid
);

CREATE TABLE public.leaders (
    chore text NOT NULL,
    holder uuid NOT NULL,
    held_until timestamp with time zone NOT NULL
);

CREATE TABLE public.passes (
    lane integer NOT NULL,
    at timestamp with time zone NOT NULL,
    n integer NOT NULL
);

CREATE TABLE public.rests (
    lane integer NOT NULL,
    group_key text NOT NULL,
    until timestamp with time zone NOT NULL,
    probe uuid
);

CREATE TABLE public.schedules (
    name text NOT NULL,
    spec text NOT NULL,
    paused boolean NOT NULL,
    next_run_at timestamp with time zone,
    last_run_at timestamp with time zone,
    last_job_id uuid,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.stat_deltas (
    lane integer NOT NULL,
    scheduled integer DEFAULT 0 NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    blocked integer DEFAULT 0 NOT NULL,
    ready integer DEFAULT 0 NOT NULL,
    running integer DEFAULT 0 NOT NULL,
    completed integer DEFAULT 0 NOT NULL,
    cancelled integer DEFAULT 0 NOT NULL,
    dead integer DEFAULT 0 NOT NULL,
    enqueued integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL
);

CREATE TABLE public.stat_rates (
    lane integer NOT NULL,
    slot timestamp with time zone NOT NULL,
    enqueued bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    dead bigint NOT NULL
);

CREATE TABLE public.stat_times (
    lane integer NOT NULL,
    minute timestamp with time zone NOT NULL,
    kind text NOT NULL,
    bucket smallint NOT NULL,
    n bigint NOT NULL
);

CREATE TABLE public.stat_totals (
    lane integer NOT NULL,
    scheduled bigint NOT NULL,
    blocked bigint NOT NULL,
    ready bigint NOT NULL,
    running bigint NOT NULL,
    completed bigint NOT NULL,
    cancelled bigint NOT NULL,
    dead bigint NOT NULL
);

CREATE TABLE public.versions (
    name text NOT NULL,
    number bigint NOT NULL
);

CREATE TABLE public.workers (
    id text NOT NULL,
    directive text DEFAULT 'run'::text NOT NULL,
    last_seen_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE ONLY public.finished_jobs ATTACH PARTITION public.finished_jobs_default DEFAULT;

ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.asks
    ADD CONSTRAINT asks_pkey PRIMARY KEY (queue, job_type);

ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY public.dependents
    ADD CONSTRAINT dependents_pkey PRIMARY KEY (lane, parent, child);

ALTER TABLE ONLY public.endings
    ADD CONSTRAINT endings_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY public.gates
    ADD CONSTRAINT gates_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY public.job_types
    ADD CONSTRAINT job_types_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY public.keys
    ADD CONSTRAINT keys_pkey PRIMARY KEY (lane, digest);

ALTER TABLE ONLY public.leaders
    ADD CONSTRAINT leaders_pkey PRIMARY KEY (chore);

ALTER TABLE ONLY public.queues
    ADD CONSTRAINT queues_name_key UNIQUE (name);

ALTER TABLE ONLY public.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.rests
    ADD CONSTRAINT rests_pkey PRIMARY KEY (lane, group_key);

ALTER TABLE ONLY public.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.stat_rates
    ADD CONSTRAINT stat_rates_pkey PRIMARY KEY (lane, slot);

ALTER TABLE ONLY public.stat_times
    ADD CONSTRAINT stat_times_pkey PRIMARY KEY (lane, minute, kind, bucket);

ALTER TABLE ONLY public.stat_totals
    ADD CONSTRAINT stat_totals_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY public.versions
    ADD CONSTRAINT versions_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);

CREATE INDEX dead_letters_dead_at ON public.dead_letters USING btree (dead_at);

CREATE INDEX finished_jobs_id ON ONLY public.finished_jobs USING btree (lane, id);

CREATE INDEX finished_jobs_default_lane_id_idx ON public.finished_jobs_default USING btree (lane, id);

CREATE INDEX jobs_due ON public.jobs USING btree (run_at) WHERE (state = 'scheduled'::text);

CREATE INDEX jobs_expiring ON public.jobs USING btree (expires_at) WHERE ((expires_at IS NOT NULL) AND (lease_expires_at IS NULL));

CREATE INDEX jobs_held ON public.jobs USING btree (held_by) WHERE ((held_by IS NOT NULL) AND (lease_expires_at IS NOT NULL));

CREATE INDEX jobs_in_turn ON public.jobs USING btree (lane, priority DESC, turn, id) WHERE ((state = 'ready'::text) AND (turn IS NOT NULL));

CREATE INDEX jobs_leased ON public.jobs USING btree (lease_expires_at, worker_id) WHERE (lease_expires_at IS NOT NULL);

CREATE INDEX jobs_parked ON public.jobs USING btree (lane, COALESCE(group_key, ''::text), id) WHERE (state = 'parked'::text);

CREATE INDEX jobs_ready ON public.jobs USING btree (lane, priority DESC, id) WHERE (state = 'ready'::text);

CREATE INDEX jobs_slots ON public.jobs USING btree (lane) WHERE slot;

CREATE INDEX jobs_turns ON public.jobs USING btree (lane, COALESCE(group_key, ''::text), priority, turn) WHERE (turn IS NOT NULL);

CREATE INDEX keys_expires_at ON public.keys USING btree (expires_at);

CREATE INDEX passes_at ON public.passes USING btree (lane, at);

CREATE INDEX schedules_next_run_at ON public.schedules USING btree (next_run_at);

CREATE INDEX stat_deltas_lane ON public.stat_deltas USING btree (lane);

ALTER INDEX public.finished_jobs_id ATTACH PARTITION public.finished_jobs_default_lane_id_idx;

