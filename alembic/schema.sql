CREATE FUNCTION public.claim_jobs(claim_lane integer, max_jobs integer, in_admission_order boolean, highest smallint[], lowest smallint[], after uuid[], until uuid[], allowed_types text[], held_groups text[], claimed_at timestamp with time zone, claimed_epoch double precision, secret text, claims text[], slice_workers text[], slice_lease_seconds integer[], default_lease_seconds integer, slice_starts bigint[], envelope_bytes integer, max_bytes bigint, allow_one_oversized boolean, takes_slot boolean, owner text) RETURNS TABLE(id uuid, job_type text, payload text, attempt smallint, max_attempts smallint, deliveries integer, lease_token uuid, lease_seconds double precision, waited_seconds double precision, priority smallint, checkpoint text, progress text, group_key text, tags text, metadata text, traceparent text, tracestate text, deadline_at timestamp with time zone, depends_on uuid[], admission bigint, slice_number integer, size integer)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_memoize TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    -- Claims that leave jobs behind for rivals lock jobs instead of spans.
    locks_spans CONSTANT boolean := allowed_types IS NULL AND held_groups IS NULL AND NOT in_admission_order;

    must_measure boolean := cardinality(claims) > 1 OR cardinality(highest) > 1 OR in_admission_order;

    ids uuid[];

    sizes int[];

    lease_lengths int[];

    slices int[];

    missing bigint;

    picked bigint;

    picked_bytes bigint;

    has_priorities boolean;

    visited bigint;

    priorities smallint[];

    first_ids uuid[];

    claimed bigint := 0;

    updated bigint;

    has_lost boolean := false;

    bytes_left bigint := max_bytes;

    checked_ids uuid[] := '{}';

    checked_slices int[] := '{}';

    checked_lengths int[] := '{}';

    tidied bigint;

BEGIN
    LOOP
        ids := '{}';

        sizes := '{}';

        lease_lengths := '{}';

        missing := max_jobs - claimed;

        IF in_admission_order THEN
            SELECT coalesce(array_agg(job.id), '{}'), array_agg(job.size), array_agg(job.lease_length),
                array_agg(DISTINCT job.priority)
            INTO ids, sizes, lease_lengths, priorities
            FROM (
                SELECT id, priority,
                    least(coalesce(lease_seconds, default_lease_seconds), timeout_seconds) AS lease_length,
                    envelope_bytes + octet_length(payload)
                        + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
                        + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0) AS size
                FROM jobs
                WHERE lane = claim_lane AND ready_admission IS NOT NULL
                    AND (allowed_types IS NULL OR job_type = ANY(allowed_types))
                    AND (expires_at IS NULL OR expires_at > claimed_at)
                ORDER BY priority DESC, ready_admission, id
                LIMIT missing
                FOR UPDATE SKIP LOCKED
            ) AS job;

            missing := 0;

        END IF;

        WHILE missing > 0 LOOP
            SELECT ids || array_agg(job.id), sizes || array_agg(job.size), lease_lengths || array_agg(job.lease_length),
                count(*), sum(job.size), max(job.priority) > min(job.priority), max(job.span_number),
                array_agg(job.priority) FILTER (WHERE job.begins_span),
                array_agg(job.first_id) FILTER (WHERE job.begins_span)
            INTO ids, sizes, lease_lengths, picked, picked_bytes, has_priorities, visited,
                priorities, first_ids
            FROM (
                SELECT job.id, job.size, job.lease_length, span.span_number, span.priority, span.first_id,
                    locked_span.is_mine AND job.id = span.first_id AS begins_span
                FROM (
                    SELECT ordered.place, ordered.priority, ordered.first_id, ordered.last_id,
                        row_number() OVER () AS span_number
                    FROM unnest(highest, lowest, after, until) AS scan_range (highest, lowest, after, until)
                    CROSS JOIN LATERAL (
                        SELECT ctid AS place, priority, first_id, last_id
                        FROM ready_spans
                        WHERE lane = claim_lane
                            AND priority <= scan_range.highest AND priority >= scan_range.lowest
                            AND first_id > scan_range.after AND first_id <= scan_range.until
                        ORDER BY priority DESC, first_id
                    ) AS ordered
                ) AS span
                LEFT JOIN LATERAL (
                    SELECT true AS is_mine
                    FROM ready_spans
                    WHERE locks_spans AND lane = claim_lane AND ctid = span.place
                    FOR UPDATE SKIP LOCKED
                ) AS locked_span ON true
                CROSS JOIN LATERAL (
                    SELECT id, ctid AS place, xmax <> '0' AS may_be_locked,
                        least(coalesce(lease_seconds, default_lease_seconds), timeout_seconds) AS lease_length,
                        envelope_bytes + octet_length(payload)
                            + coalesce(octet_length(checkpoint), 0) + coalesce(octet_length(progress), 0)
                            + coalesce(octet_length(tags), 0) + coalesce(octet_length(metadata), 0) AS size
                    FROM jobs
                    WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id
                        AND state = 'ready' AND priority = span.priority AND id <> ALL(ids)
                        AND (allowed_types IS NULL OR job_type = ANY(allowed_types))
                        AND (expires_at IS NULL OR expires_at > claimed_at)
                        AND (
                            held_groups IS NULL OR admission IS NOT NULL OR NOT (
                                coalesce(group_key, '') = ANY(held_groups)
                                OR (group_key IS NOT NULL AND '*' = ANY(held_groups))
                            )
                        )
                    ORDER BY id
                ) AS job
                LEFT JOIN LATERAL (
                    SELECT true AS is_mine
                    FROM jobs
                    WHERE (job.may_be_locked OR locked_span.is_mine IS NULL)
                        AND lane = claim_lane AND ctid = job.place AND state = 'ready'
                    FOR UPDATE SKIP LOCKED
                ) AS locked_job ON true
                WHERE locked_job.is_mine OR (locked_span.is_mine AND NOT job.may_be_locked)
                LIMIT missing
            ) AS job;

            must_measure := must_measure OR coalesce(has_priorities OR picked_bytes > bytes_left, false);

            IF picked < missing THEN
                visited := NULL;  -- all
                EXIT;

            END IF;

            EXIT WHEN visited = 1;

            SELECT max_jobs - claimed - count(DISTINCT job.id) INTO missing FROM unnest(ids) AS job (id);

            must_measure := must_measure OR cardinality(ids) > max_jobs - claimed - missing;

        END LOOP;

        EXIT WHEN ids = '{}';

        IF must_measure THEN
            SELECT array_agg(job.id), array_agg(job.slice), array_agg(job.size), array_agg(job.lease_length)
            INTO ids, slices, sizes, lease_lengths
            FROM (
                SELECT measured.id, measured.slice, measured.size, measured.lease_length
                FROM (
                    SELECT assigned.id, assigned.slice, assigned.size, assigned.lease_length,
                        sum(assigned.size) OVER (
                            PARTITION BY assigned.slice ORDER BY assigned.position ROWS UNBOUNDED PRECEDING
                        ) AS bytes_so_far
                    FROM (
                        SELECT ranked.id, ranked.size, ranked.lease_length, ranked.position,
                            width_bucket(ranked.position, slice_starts) + 1 AS slice
                        FROM (
                            SELECT different.id, different.size, different.lease_length,
                                row_number() OVER (ORDER BY different.position) AS position
                            FROM (
                                SELECT DISTINCT ON (job.id) job.id, job.size, job.lease_length, job.position
                                FROM unnest(ids, sizes, lease_lengths)
                                    WITH ORDINALITY AS job (id, size, lease_length, position)
                                ORDER BY job.id, job.position
                            ) AS different
                        ) AS ranked
                    ) AS assigned
                ) AS measured
                WHERE measured.bytes_so_far <= bytes_left
                    OR (allow_one_oversized AND claimed = 0 AND measured.bytes_so_far = measured.size)
                ORDER BY measured.id
            ) AS job;

            EXIT WHEN ids IS NULL;

        ELSE
            slices := array_fill(1, ARRAY[cardinality(ids)]);

        END IF;

        RETURN QUERY
        UPDATE jobs
        SET state = 'running',
            state_reason = NULL,
            settled_as = NULL,
            unreported_since = NULL,
            attempt = attempt + 1,
            deliveries = deliveries + 1,
            worker_id = coalesce(slice_workers[job.slice], NULL),
            started_at = claimed_at,
            lease_token = (coalesce(claims[job.slice], '') || right(md5(secret || jobs.id::text), 16))::uuid,
            lease_expires_at = to_timestamp(claimed_epoch
                + least(
                    coalesce(slice_lease_seconds[job.slice], lease_seconds, default_lease_seconds), timeout_seconds
                )),
            deadline_at = to_timestamp(claimed_epoch + timeout_seconds),
            uses_slot = takes_slot,
            quota_owner = owner
        FROM unnest(ids, slices, sizes) AS job (id, slice, size)
        WHERE jobs.lane = claim_lane AND jobs.id = ANY(ids) AND jobs.id = job.id
            AND state = 'ready'
        RETURNING jobs.id, job_type, payload, attempt, max_attempts, deliveries, lease_token,
            date_part('epoch', lease_expires_at - claimed_at),
            CASE WHEN crashes = 0 THEN date_part('epoch', claimed_at - greatest(run_at, 'epoch')) END,
            priority, checkpoint, progress, group_key, tags, metadata, traceparent, tracestate, deadline_at, depends_on,
            admission, job.slice, job.size;

        GET DIAGNOSTICS updated = ROW_COUNT;

        claimed := claimed + updated;

        checked_ids := checked_ids || ids;

        checked_slices := checked_slices || slices;

        checked_lengths := checked_lengths || lease_lengths;

        EXIT WHEN updated = cardinality(ids) OR (must_measure AND updated > 0);

        bytes_left := bytes_left - (SELECT sum(job.size) FROM unnest(sizes) AS job (size));

        has_lost := true;

    END LOOP;

    IF in_admission_order THEN
        SELECT array_agg(span.first_id)
        INTO first_ids
        FROM (
            SELECT first_id
            FROM ready_spans
            WHERE lane = claim_lane AND priority = ANY(priorities) AND first_id = ANY(checked_ids)
            FOR UPDATE SKIP LOCKED
        ) AS span;

    ELSIF (has_lost OR visited IS NULL OR visited IS DISTINCT FROM cardinality(first_ids))
        AND pg_current_xact_id_if_assigned() IS NOT NULL
    THEN
        SELECT array_agg(span.priority), array_agg(span.first_id)
        INTO priorities, first_ids
        FROM (
            SELECT ordered.place, ordered.priority, ordered.first_id, ordered.last_id
            FROM unnest(highest, lowest, after, until) AS scan_range (highest, lowest, after, until)
            CROSS JOIN LATERAL (
                SELECT ctid AS place, priority, first_id, last_id
                FROM ready_spans
                WHERE lane = claim_lane
                    AND priority <= scan_range.highest AND priority >= scan_range.lowest
                    AND first_id > scan_range.after AND first_id <= scan_range.until
                ORDER BY priority DESC, first_id
            ) AS ordered
            LIMIT CASE WHEN has_lost OR NOT locks_spans THEN least(visited, 100) ELSE visited END
        ) AS span
        CROSS JOIN LATERAL (
            SELECT lane FROM ready_spans WHERE lane = claim_lane AND ctid = span.place FOR UPDATE SKIP LOCKED
        ) AS locked
        WHERE (
            SELECT id
            FROM jobs
            WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
                AND priority = span.priority
            ORDER BY id
            LIMIT 1
        ) IS DISTINCT FROM span.first_id;

    END IF;

    IF first_ids IS NOT NULL THEN
        DELETE FROM ready_spans AS span
        WHERE lane = claim_lane
            AND priority = ANY(priorities) AND first_id = ANY(first_ids) AND xmax = pg_current_xact_id()::xid
            AND (
                SELECT id
                FROM jobs
                WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
                    AND priority = span.priority
                ORDER BY id
                LIMIT 1
            ) IS NULL;

        GET DIAGNOSTICS tidied = ROW_COUNT;

        IF tidied < cardinality(first_ids) THEN
            UPDATE ready_spans AS span
            SET first_id = coalesce(
                (
                    SELECT id
                    FROM jobs
                    WHERE lane = claim_lane AND id >= span.first_id AND id <= span.last_id AND state = 'ready'
                        AND priority = span.priority
                    ORDER BY id
                    LIMIT 1
                ),
                first_id
            )
            WHERE lane = claim_lane
                AND priority = ANY(priorities) AND first_id = ANY(first_ids) AND xmax = pg_current_xact_id()::xid;

        END IF;

    END IF;

    IF claimed > 0 THEN
        INSERT INTO lease_checks (lane, check_at, claim, worker_id, job_ids)
        SELECT claim_lane,
            to_timestamp(claimed_epoch + least(min(job.lease_length), min(slice_lease_seconds[job.slice]), 60)),
            decode(claims[job.slice], 'hex'), slice_workers[job.slice], array_agg(job.id)
        FROM unnest(checked_ids, checked_slices, checked_lengths) AS job (id, slice, lease_length)
        GROUP BY job.slice;

        INSERT INTO stat_deltas (lane, ready, running) VALUES (claim_lane, -claimed, claimed);

    END IF;

END
$$;

CREATE FUNCTION public.create_finished_partition(day date, archived boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '200ms'
    SET search_path TO 'public', 'pg_temp'
    SET "DateStyle" TO 'ISO, MDY'
    SET standard_conforming_strings TO 'on'
    AS $$
DECLARE
    partition text := format(
        'finished_jobs_%s%s', CASE WHEN archived THEN 'archive_' ELSE '' END, to_char(day, 'YYYYMMDD')
    );

BEGIN
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN false;

    END IF;

    EXECUTE format('CREATE TABLE %I (LIKE finished_jobs)', partition);

    EXECUTE format('ALTER TABLE %I REPLICA IDENTITY FULL', partition);

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

CREATE FUNCTION public.grant_to_broker(grantee name) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'public', 'pg_temp'
    AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), grantee);

    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE
        ON jobs, ready_spans, lease_checks, dead_letters, deduplication_keys, leaders, clock_lags, workers,
            poll_history, job_types, schedules, rate_limit_usage, group_cooldowns, dependents, finished_parents,
            stat_deltas, stat_totals, stat_rates, stat_durations
        TO %I',
        grantee
    );

    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON queues, lane_locks, api_keys TO %I', grantee);

    EXECUTE format('GRANT SELECT, INSERT ON finished_jobs TO %I', grantee);

    EXECUTE format('GRANT SELECT, UPDATE ON config_versions TO %I', grantee);

    EXECUTE format('GRANT SELECT ON finished_jobs_default, alembic_version, queue_id_range TO %I', grantee);

    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION create_finished_partition, retire_finished_partition, claim_jobs TO %I', grantee
    );

END
$$;

CREATE TABLE public.queues (
    id integer NOT NULL,
    name text NOT NULL,
    lanes smallint DEFAULT 1 NOT NULL,
    group_lanes smallint DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    paused_at timestamp with time zone,
    paused_reason text,
    deleted_at timestamp with time zone,
    config text DEFAULT '{}'::text NOT NULL,
    CONSTRAINT queues_id_check CHECK (((id >= 1) AND (id <= 65535))),
    CONSTRAINT queues_lanes_check CHECK (((lanes >= 1) AND (lanes <= 256)))
);

CREATE FUNCTION public.longshore_check_max_waiting(queue public.queues) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    first_lane int := queue.id << 8;

    queue_lock int := -queue.id;

    max_waiting bigint := queue.config::jsonb ->> 'max_waiting';

    waiting bigint;

BEGIN
    IF max_waiting IS NULL THEN
        RETURN;

    END IF;

    PERFORM FROM lane_locks WHERE lane = queue_lock FOR UPDATE;

    IF NOT FOUND THEN
        INSERT INTO lane_locks (lane) VALUES (queue_lock) ON CONFLICT DO NOTHING;

        PERFORM FROM lane_locks WHERE lane = queue_lock FOR UPDATE;

    END IF;

    SELECT coalesce(sum(scheduled + blocked + ready), 0)
    INTO waiting
    FROM (
        SELECT scheduled, blocked, ready
        FROM stat_totals
        WHERE lane >= first_lane AND lane < first_lane + queue.lanes
        UNION ALL
        SELECT scheduled, blocked, ready
        FROM stat_deltas
        WHERE lane >= first_lane AND lane < first_lane + queue.lanes
    ) AS parts;

    IF waiting >= max_waiting THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = format('%s has reached its limit of %s waiting jobs', queue.name, max_waiting),
            COLUMN = 'queue';

    END IF;

END
$$;

CREATE FUNCTION public.longshore_digest(value text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    RETURN encode(substr(sha256(convert_to(value, 'UTF8')), 1, 16), 'hex')::uuid;

END
$$;

CREATE FUNCTION public.longshore_enqueue_v1(job_type text, payload json DEFAULT '{}'::json, queue text DEFAULT 'default'::text, priority integer DEFAULT NULL::integer, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay_seconds integer DEFAULT NULL::integer, group_key text DEFAULT NULL::text, unique_key text DEFAULT NULL::text, unique_for_seconds integer DEFAULT NULL::integer, on_duplicate text DEFAULT NULL::text, max_attempts integer DEFAULT NULL::integer, retry json DEFAULT NULL::json, lease_seconds integer DEFAULT NULL::integer, timeout_seconds integer DEFAULT NULL::integer, expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, tags text[] DEFAULT NULL::text[], metadata json DEFAULT NULL::json, depends_on uuid[] DEFAULT NULL::uuid[], on_parent_failure text DEFAULT NULL::text, traceparent text DEFAULT NULL::text, tracestate text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET search_path TO 'public', 'pg_temp'
    SET "DateStyle" TO 'ISO, MDY'
    SET standard_conforming_strings TO 'on'
    AS $_$
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
$_$;

CREATE FUNCTION public.longshore_find_json_fault(document json, max_bytes integer) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    string_pattern CONSTANT text := E'"(?:[^"\\\\]|\\\\.)*"';

    document_text text := document::text;

    outside_strings text;

    opening_brackets int;

    max_depth int;

    normalized text;

BEGIN
    IF octet_length(document_text) > max_bytes THEN
        RETURN format('must have at most %s bytes, but has %s', max_bytes, octet_length(document_text));

    END IF;

    outside_strings := regexp_replace(document_text, string_pattern, '', 'g');

    opening_brackets := length(outside_strings) - length(translate(outside_strings, '[{', ''));

    IF opening_brackets + length(outside_strings) - length(replace(outside_strings, ',', '')) >= 10000 THEN
        RETURN 'more than 10000 values';

    END IF;

    IF opening_brackets > 64 THEN
        SELECT max(depth)
        INTO max_depth
        FROM (
            SELECT sum(CASE WHEN bracket IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY position) AS depth
            FROM string_to_table(regexp_replace(outside_strings, '[^][{}]', '', 'g'), NULL)
                WITH ORDINALITY AS brackets (bracket, position)
        ) AS depths;

        IF max_depth > 64 THEN
            RETURN 'nested more than 64 levels deep';

        END IF;

    END IF;

    IF outside_strings ~ '[-+.0-9eE]{65}' THEN
        RETURN 'a number of more than 64 digits';

    END IF;

    BEGIN
        normalized := document_text::jsonb::text;

    EXCEPTION
        WHEN data_exception OR program_limit_exceeded THEN
            RETURN SQLERRM;  -- a NUL character, an unpaired surrogate, a number out of range
    END;

    IF EXISTS (
        SELECT
        FROM regexp_matches(outside_strings, '[.0-9]+[eE][+]?[0-9]+', 'g') AS numbers (parts)
        WHERE parts[1]::numeric > 1.7976931348623158079e308
    ) THEN
        RETURN 'a number that does not fit into a double';

    END IF;

    normalized := regexp_replace(normalized, string_pattern, '', 'g');

    IF length(outside_strings) - length(replace(outside_strings, ':', ''))
        <> length(normalized) - length(replace(normalized, ':', '')) THEN
        RETURN 'duplicate key in an object';

    END IF;

    RETURN NULL;

END
$$;

CREATE FUNCTION public.longshore_find_or_create_queue(queue_name text) RETURNS public.queues
    LANGUAGE plpgsql
    AS $$
DECLARE
    queue queues;

BEGIN
    FOR tries IN 1..20 LOOP
        SELECT * INTO queue FROM queues WHERE name = queue_name;

        IF queue.id IS NOT NULL THEN
            -- Returns a deleted queue, too. The first broker that finds a job in the queue
            -- undeletes it. If this function undeleted the queue, other calls would have to wait
            -- until this transaction ends.
            RETURN queue;

        ELSIF (SELECT count(*) FROM queues WHERE deleted_at IS NULL) >= 10000 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'configuration_limit_exceeded', MESSAGE = 'there are 10000 queues already', COLUMN = 'queue';

        END IF;

        BEGIN
            INSERT INTO queues (id, name)
            SELECT least(coalesce(max(queues.id) + 1, first_id), last_id), queue_name
            FROM queue_id_range
            LEFT JOIN queues ON queues.id BETWEEN first_id AND last_id
            GROUP BY first_id, last_id
            ON CONFLICT (name) DO NOTHING;

        EXCEPTION
            WHEN unique_violation THEN
                NULL;  -- a concurrent transaction has used the id for another queue
        END;

    END LOOP;

    RAISE EXCEPTION USING
        ERRCODE = 'configuration_limit_exceeded', MESSAGE = 'the queue could not be created', COLUMN = 'queue';

END
$$;

CREATE FUNCTION public.longshore_find_retry_fault(retry json) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    fault text := longshore_find_json_fault(retry, 1024);

BEGIN
    IF fault IS NULL AND json_typeof(retry) <> 'object' THEN
        RETURN 'must be an object';

    ELSIF fault IS NULL THEN
        SELECT CASE
            WHEN field.name IS NULL THEN format('unknown field %s', member.name)
            ELSE format('%s must be a number from %s to %s', field.name, field.minimum, field.maximum)
        END
        INTO fault
        FROM json_each(retry) AS member (name, value)
        LEFT JOIN (
            VALUES ('base_seconds', 0, 31622400), ('factor', 1, 1000), ('max_seconds', 0, 31622400), ('jitter', 0, 1)
        ) AS field (name, minimum, maximum) ON field.name = member.name
        WHERE CASE
            WHEN field.name IS NULL OR json_typeof(member.value) <> 'number' THEN true
            ELSE member.value::text::numeric NOT BETWEEN field.minimum AND field.maximum
        END
        LIMIT 1;

    END IF;

    RETURN fault;

END
$$;

CREATE FUNCTION public.longshore_find_unique_key(key_digest uuid, called_at timestamp with time zone) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    stored_key deduplication_keys;

    ended_by timestamptz := longshore_lagging_time('unique_windows', called_at);

    retention_now timestamptz := longshore_lagging_time('retention', called_at);

    job_lane int;

BEGIN
    INSERT INTO deduplication_keys (lane, digest, expires_at)
    VALUES (get_byte(uuid_send(key_digest), 15), key_digest, called_at + make_interval(hours => 24))
    ON CONFLICT (lane, digest) DO UPDATE
    SET digest = excluded.digest
    RETURNING *
    INTO stored_key;

    IF stored_key.job_id IS NULL OR (stored_key.response = 'window' AND stored_key.expires_at <= ended_by) THEN
        RETURN NULL;

    END IF;

    job_lane := longshore_lane_of(stored_key.job_id);

    IF EXISTS (SELECT FROM jobs WHERE lane = job_lane AND id = stored_key.job_id)
        OR stored_key.response = 'window' AND (
        EXISTS (
            SELECT FROM finished_jobs
            WHERE lane = job_lane AND id = stored_key.job_id AND keep_until > retention_now
        )
        OR EXISTS (SELECT FROM dead_letters WHERE lane = job_lane AND id = stored_key.job_id)
    ) THEN
        RETURN stored_key.job_id;

    END IF;

    RETURN NULL;

END
$$;

CREATE FUNCTION public.longshore_generate_id(job_lane integer, created_at timestamp with time zone) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    microseconds bigint := extract(epoch FROM created_at) * 1000000;

    fraction bigint := microseconds % 1000 * 4096 / 1000;

    random_bits bigint := ('x' || right(gen_random_uuid()::text, 10))::bit(40)::bigint & ((1::bigint << 38) - 1);

BEGIN
    RETURN lpad(to_hex(microseconds / 1000), 12, '0') || '7' || lpad(to_hex(fraction), 3, '0')
        || to_hex((1::bigint << 63) | (job_lane::bigint << 38) | random_bits);

END
$$;

CREATE FUNCTION public.longshore_lagging_time(clock_name text, called_at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN called_at - make_interval(secs => coalesce((
        SELECT max(seconds)
        FROM clock_lags
        WHERE clock = clock_name AND starts_at <= called_at AND ends_at > called_at
    ), 0));

END
$$;

CREATE FUNCTION public.longshore_lane_of(job_id uuid) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    bytes bytea := uuid_send(job_id);

BEGIN
    RETURN ((get_byte(bytes, 8) & 63) << 18) + (get_byte(bytes, 9) << 10) + (get_byte(bytes, 10) << 2)
        + (get_byte(bytes, 11) >> 6);

END
$$;

CREATE FUNCTION public.longshore_mark_parents(parent_ids uuid[], called_at timestamp with time zone) RETURNS TABLE(parent_id uuid, final_state text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    retention_now timestamptz := longshore_lagging_time('retention', called_at);

    job_lane int;

    ids uuid[];

BEGIN
    FOR job_lane, ids IN
        SELECT longshore_lane_of(parent), array_agg(parent) FROM unnest(parent_ids) AS parent GROUP BY 1 ORDER BY 1
    LOOP
        PERFORM FROM jobs WHERE lane = job_lane AND id = ANY(ids) ORDER BY id FOR UPDATE;

        RETURN QUERY
        UPDATE jobs SET has_dependents = true WHERE lane = job_lane AND id = ANY(ids) RETURNING id, NULL::text;

        RETURN QUERY
        SELECT id, state
        FROM finished_jobs
        WHERE lane = job_lane AND id = ANY(ids) AND keep_until > retention_now
        UNION ALL
        SELECT id, 'dead'
        FROM dead_letters
        WHERE lane = job_lane AND id = ANY(ids);

    END LOOP;

END
$$;

CREATE FUNCTION public.longshore_needs_admission(queue public.queues, job_lane integer, job_group text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    config jsonb := queue.config;

BEGIN
    RETURN coalesce((config ->> 'fair')::boolean, false)
        OR (job_group IS NOT NULL AND config ? 'max_running_per_group')
        OR EXISTS (SELECT FROM group_cooldowns WHERE lane = job_lane AND group_key = coalesce(job_group, ''));

END
$$;

CREATE TABLE public.jobs (
    lane integer NOT NULL,
    attempt smallint DEFAULT 0 NOT NULL,
    crashes smallint DEFAULT 0 NOT NULL,
    run_at timestamp with time zone NOT NULL,
    lease_expires_at timestamp with time zone,
    started_at timestamp with time zone,
    deadline_at timestamp with time zone,
    expires_at timestamp with time zone,
    unreported_since timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    due_at timestamp with time zone GENERATED ALWAYS AS (
CASE
    WHEN (state = 'scheduled'::text) THEN run_at
    ELSE NULL::timestamp with time zone
END) STORED,
    start_by timestamp with time zone GENERATED ALWAYS AS (
CASE
    WHEN (state <> 'running'::text) THEN expires_at
    ELSE NULL::timestamp with time zone
END) STORED,
    admission bigint,
    ready_admission bigint GENERATED ALWAYS AS (
CASE
    WHEN (state = 'ready'::text) THEN admission
    ELSE NULL::bigint
END) STORED,
    lease_token uuid,
    deliveries integer DEFAULT 0 NOT NULL,
    uses_slot boolean,
    has_dependents boolean,
    state text NOT NULL,
    state_reason text,
    settled_as text,
    worker_id text,
    quota_owner text,
    pending_group text GENERATED ALWAYS AS (
CASE
    WHEN (state = 'pending'::text) THEN COALESCE(group_key, ''::text)
    ELSE NULL::text
END) STORED,
    waiting_for uuid[],
    attempts text[],
    progress text,
    checkpoint text,
    id uuid NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    replay_count smallint DEFAULT 0 NOT NULL,
    lease_seconds integer,
    timeout_seconds integer,
    replayed_from uuid,
    job_type text NOT NULL,
    group_key text,
    retry text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    on_parent_failure text,
    unique_key text,
    schedule text,
    depends_on uuid[],
    payload text NOT NULL
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0.5');

CREATE FUNCTION public.longshore_replace_waiting(existing_id uuid, new_job public.jobs, queue public.queues, called_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    job_lane int := longshore_lane_of(existing_id);

    old_job jobs;

    new_state text;

BEGIN
    SELECT * INTO old_job FROM jobs WHERE lane = job_lane AND id = existing_id AND lease_expires_at IS NULL FOR UPDATE;

    IF old_job.id IS NULL THEN
        RETURN;  -- the job is running, so it is not changed
    END IF;

    new_state := CASE
        WHEN old_job.state = 'blocked' THEN 'blocked'
        WHEN new_job.run_at > called_at THEN 'scheduled'
        WHEN old_job.state IN ('ready', 'pending') THEN old_job.state
        WHEN old_job.admission IS NOT NULL THEN 'ready'
        WHEN longshore_needs_admission(queue, job_lane, old_job.group_key) THEN 'pending'
        ELSE 'ready'
    END;

    UPDATE jobs
    SET state = new_state,
        admission = CASE WHEN new_job.run_at <= called_at OR old_job.state = 'scheduled' THEN admission END,
        state_reason = CASE WHEN new_state = 'blocked' THEN state_reason END,
        run_at = new_job.run_at,
        priority = new_job.priority,
        max_attempts = new_job.max_attempts,
        job_type = new_job.job_type,
        lease_seconds = new_job.lease_seconds,
        retry = new_job.retry,
        tags = new_job.tags,
        metadata = new_job.metadata,
        payload = new_job.payload,
        expires_at = new_job.expires_at,
        timeout_seconds = new_job.timeout_seconds,
        traceparent = new_job.traceparent,
        tracestate = new_job.tracestate,
        checkpoint = NULL,
        progress = NULL,
        lease_token = CASE WHEN settled_as IS NOT NULL THEN lease_token END
    WHERE lane = job_lane AND id = existing_id;

    IF new_state = 'ready' THEN
        INSERT INTO ready_spans (lane, priority, first_id, last_id)
        VALUES (job_lane, new_job.priority, existing_id, existing_id);

    END IF;

    IF new_state <> old_job.state THEN
        INSERT INTO stat_deltas (lane, at, ready, scheduled)
        VALUES (
            job_lane,
            called_at,
            (new_state IN ('ready', 'pending'))::int - (old_job.state IN ('ready', 'pending'))::int,
            (new_state = 'scheduled')::int - (old_job.state = 'scheduled')::int
        );

    END IF;

END
$$;

CREATE FUNCTION public.retire_finished_partition(partition text, archived boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET lock_timeout TO '200ms'
    SET search_path TO 'public', 'pg_temp'
    SET "DateStyle" TO 'ISO, MDY'
    SET standard_conforming_strings TO 'on'
    AS $_$
BEGIN
    IF partition !~ '^finished_jobs_(archive_)?[0-9]{8}$' OR to_regclass(partition) IS NULL THEN
        RETURN false;

    END IF;

    -- Counts the rows before it locks the table, because no transaction may wait while a whole day
    -- is counted. No row is added to a past day in the meantime.
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

CREATE TABLE public.clock_lags (
    clock text NOT NULL,
    broker uuid NOT NULL,
    seconds double precision NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL
);

CREATE TABLE public.config_versions (
    name text NOT NULL,
    number bigint NOT NULL
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
    lease_seconds integer,
    timeout_seconds integer,
    lease_token uuid,
    replayed_from uuid,
    settled_as text,
    reason text NOT NULL,
    error_type text,
    fingerprint text NOT NULL,
    worker_id text,
    job_type text NOT NULL,
    group_key text,
    retry text,
    attempts text[],
    progress text,
    checkpoint text,
    tags text,
    metadata text,
    traceparent text,
    tracestate text,
    unique_key text,
    schedule text,
    depends_on uuid[],
    payload text NOT NULL
);

CREATE TABLE public.deduplication_keys (
    lane integer NOT NULL,
    digest uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    job_id uuid,
    fingerprint uuid,
    response text
);

CREATE TABLE public.dependents (
    lane integer NOT NULL,
    parent_id uuid NOT NULL,
    child_id uuid NOT NULL
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
    replayed_from uuid,
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
    unique_key text,
    schedule text,
    depends_on uuid[],
    result text,
    payload text NOT NULL
)
PARTITION BY RANGE (archive, keep_until);

ALTER TABLE ONLY public.finished_jobs REPLICA IDENTITY FULL;

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
    replayed_from uuid,
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
    unique_key text,
    schedule text,
    depends_on uuid[],
    result text,
    payload text CONSTRAINT finished_jobs_payload_not_null NOT NULL
);

ALTER TABLE ONLY public.finished_jobs_default REPLICA IDENTITY FULL;

CREATE TABLE public.finished_parents (
    lane integer NOT NULL,
    id uuid NOT NULL,
    state text NOT NULL
);

CREATE TABLE public.group_cooldowns (
    lane integer NOT NULL,
    group_key text NOT NULL,
    until timestamp with time zone NOT NULL,
    probe_job_id uuid
);

CREATE TABLE public.job_types (
    name text NOT NULL,
    config text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.lane_locks (
    lane integer NOT NULL
);

CREATE TABLE public.leaders (
    service text NOT NULL,
    holder uuid NOT NULL,
    held_until timestamp with time zone NOT NULL
);

CREATE TABLE public.lease_checks (
    lane integer NOT NULL,
    check_at timestamp with time zone NOT NULL,
    claim bytea NOT NULL,
    worker_id text,
    job_ids uuid[] NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0.5');

CREATE TABLE public.poll_history (
    queue text NOT NULL,
    job_type text NOT NULL,
    last_polled_at timestamp with time zone NOT NULL
);

CREATE TABLE public.queue_id_range (
    first_id integer NOT NULL,
    last_id integer NOT NULL,
    CONSTRAINT queue_id_range_check CHECK (((last_id >= first_id) AND (last_id <= 65535))),
    CONSTRAINT queue_id_range_first_id_check CHECK ((first_id >= 1))
);

CREATE TABLE public.rate_limit_usage (
    lane integer NOT NULL,
    at timestamp with time zone NOT NULL,
    count integer NOT NULL
);

ALTER TABLE ONLY public.rate_limit_usage REPLICA IDENTITY FULL;

CREATE TABLE public.ready_spans (
    lane integer NOT NULL,
    priority smallint NOT NULL,
    first_id uuid NOT NULL,
    last_id uuid NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0.5');

ALTER TABLE ONLY public.ready_spans REPLICA IDENTITY FULL;

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

ALTER TABLE ONLY public.stat_deltas REPLICA IDENTITY FULL;

CREATE TABLE public.stat_durations (
    lane integer NOT NULL,
    minute timestamp with time zone NOT NULL,
    kind text NOT NULL,
    bucket smallint NOT NULL,
    count bigint NOT NULL
);

CREATE TABLE public.stat_rates (
    lane integer NOT NULL,
    bucket_start timestamp with time zone NOT NULL,
    enqueued bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    dead bigint NOT NULL
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

ALTER TABLE ONLY public.clock_lags
    ADD CONSTRAINT clock_lags_pkey PRIMARY KEY (clock, broker);

ALTER TABLE ONLY public.config_versions
    ADD CONSTRAINT config_versions_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY public.deduplication_keys
    ADD CONSTRAINT deduplication_keys_pkey PRIMARY KEY (lane, digest);

ALTER TABLE ONLY public.dependents
    ADD CONSTRAINT dependents_pkey PRIMARY KEY (lane, parent_id, child_id);

ALTER TABLE ONLY public.finished_parents
    ADD CONSTRAINT finished_parents_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY public.group_cooldowns
    ADD CONSTRAINT group_cooldowns_pkey PRIMARY KEY (lane, group_key);

ALTER TABLE ONLY public.job_types
    ADD CONSTRAINT job_types_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY public.lane_locks
    ADD CONSTRAINT lane_locks_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY public.leaders
    ADD CONSTRAINT leaders_pkey PRIMARY KEY (service);

ALTER TABLE ONLY public.lease_checks
    ADD CONSTRAINT lease_checks_pkey PRIMARY KEY (lane, claim);

ALTER TABLE ONLY public.poll_history
    ADD CONSTRAINT poll_history_pkey PRIMARY KEY (queue, job_type);

ALTER TABLE ONLY public.queue_id_range
    ADD CONSTRAINT queue_id_range_pkey PRIMARY KEY (first_id);

ALTER TABLE ONLY public.queues
    ADD CONSTRAINT queues_name_key UNIQUE (name);

ALTER TABLE ONLY public.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.stat_durations
    ADD CONSTRAINT stat_durations_pkey PRIMARY KEY (lane, minute, kind, bucket);

ALTER TABLE ONLY public.stat_rates
    ADD CONSTRAINT stat_rates_pkey PRIMARY KEY (lane, bucket_start);

ALTER TABLE ONLY public.stat_totals
    ADD CONSTRAINT stat_totals_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);

CREATE INDEX dead_letters_dead_at ON public.dead_letters USING btree (dead_at);

CREATE INDEX deduplication_keys_expires_at ON public.deduplication_keys USING btree (expires_at);

CREATE INDEX finished_jobs_id ON ONLY public.finished_jobs USING btree (lane, id);

CREATE INDEX finished_jobs_default_lane_id_idx ON public.finished_jobs_default USING btree (lane, id);

CREATE INDEX jobs_admissions ON public.jobs USING btree (lane, COALESCE(group_key, ''::text), priority, admission) WHERE (admission IS NOT NULL);

CREATE INDEX jobs_admitted ON public.jobs USING btree (lane, priority DESC, ready_admission, id) WHERE (ready_admission IS NOT NULL);

CREATE INDEX jobs_due ON public.jobs USING btree (due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX jobs_pending ON public.jobs USING btree (lane, pending_group, id) WHERE (pending_group IS NOT NULL);

CREATE INDEX jobs_quota_owner ON public.jobs USING btree (quota_owner) WHERE (quota_owner IS NOT NULL);

CREATE INDEX jobs_start_deadline ON public.jobs USING btree (start_by) WHERE (start_by IS NOT NULL);

CREATE INDEX jobs_uses_slot ON public.jobs USING btree (lane) WHERE uses_slot;

CREATE INDEX lease_checks_check_at ON public.lease_checks USING btree (check_at);

CREATE INDEX lease_checks_worker_id ON public.lease_checks USING btree (worker_id) WHERE (worker_id IS NOT NULL);

CREATE INDEX rate_limit_usage_at ON public.rate_limit_usage USING btree (lane, at);

CREATE INDEX ready_spans_order ON public.ready_spans USING btree (lane, priority DESC, first_id);

CREATE INDEX schedules_next_run_at ON public.schedules USING btree (next_run_at);

CREATE INDEX stat_deltas_lane ON public.stat_deltas USING btree (lane);

ALTER INDEX public.finished_jobs_id ATTACH PARTITION public.finished_jobs_default_lane_id_idx;

