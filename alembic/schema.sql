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

    -- Counted before the lock: nothing is written to a day that is over, and nobody may wait while a whole day is counted.
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
    depends_on uuid[]
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0.5');

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

CREATE INDEX jobs_expiring ON public.jobs USING btree (expires_at) WHERE (expires_at IS NOT NULL);

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

