-- Functions that longshore_enqueue_v1 calls to read, lock and change rows, except the row of the
-- new job. See `5_enqueue_checks`.

-- Like app/queues/creator.py: returns the queue of this name, and creates it if it does not exist.
-- Other transactions that create the same queue wait until this transaction ends.
CREATE FUNCTION longshore_find_or_create_queue(queue_name text) RETURNS queues
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

-- Like needs_admission in app/queues/cache.py: returns whether a new job of this group needs an
-- admission. Returns true if that is uncertain, because brokers check pending jobs periodically.
CREATE FUNCTION longshore_needs_admission(queue queues, job_lane int, job_group text) RETURNS boolean
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

-- Like RetentionClock in app/db/retention_clock.py: returns the time of a clock that follows a jump
-- ahead only after a day. The clock `retention` is for retention, the clock `unique_windows` for
-- the ends of unique keys. If the brokers have different lags, the largest lag counts.
CREATE FUNCTION longshore_lagging_time(clock_name text, called_at timestamptz) RETURNS timestamptz
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

-- Like app/enqueue/uniqueness.py: returns the id of the job that has the key, or NULL if the key is
-- free. Locks the key: other enqueues with the key, over HTTP or SQL, wait until this transaction
-- ends.
CREATE FUNCTION longshore_find_unique_key(key_digest uuid, called_at timestamptz) RETURNS uuid
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

-- scheduled | blocked | ready | pending -> scheduled | blocked | ready | pending (new body)
-- Like replace_waiting in app/jobs/jobs.sql: gives a waiting job the contents of a new one.
CREATE FUNCTION longshore_replace_waiting(existing_id uuid, new_job jobs, queue queues, called_at timestamptz)
RETURNS void
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

-- Like _enforce_max_waiting in app/enqueue/draft_writer.py: raises an error if the queue is full.
-- The queue lock makes counting and inserting atomic. It is held until this transaction ends.
CREATE FUNCTION longshore_check_max_waiting(queue queues) RETURNS void
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

-- Any live state -> the same state, with has_dependents.
-- Like app/enqueue/parents.py: returns the parents that exist, with their final states. Marks and
-- locks the live parents. The final state of a live parent is NULL, and the parent cannot finish
-- before this transaction ends.
CREATE FUNCTION longshore_mark_parents(parent_ids uuid[], called_at timestamptz)
RETURNS TABLE (parent_id uuid, final_state text)
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
