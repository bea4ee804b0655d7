-- Small tables without a lane. Every broker process caches them; no hot path writes to them.

CREATE TABLE queues (
    id         int         PRIMARY KEY CHECK (id BETWEEN 1 AND 65535),
    name       text        NOT NULL UNIQUE,
    lanes      smallint    NOT NULL DEFAULT 1 CHECK (lanes BETWEEN 1 AND 256),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE workers (
    id           text        PRIMARY KEY,
    directive    text        NOT NULL DEFAULT 'run',
    last_seen_at timestamptz NOT NULL DEFAULT now()
);

-- Which process runs a service that only one process needs to run. A lease row instead of an
-- advisory lock, because it works behind a pooler.
CREATE TABLE leaders (
    chore      text        PRIMARY KEY,
    holder     uuid        NOT NULL,
    held_until timestamptz NOT NULL
);

-- Unfinished jobs: scheduled, blocked, ready, running. Columns that change come first, the payload
-- last: if a new row version is written to the same page, Postgres logs only the part that differs.
-- The fillfactor leaves space for it.
CREATE TABLE jobs (
    lane                int         NOT NULL,
    attempt             smallint    NOT NULL DEFAULT 0,
    crashes             smallint    NOT NULL DEFAULT 0,
    run_at              timestamptz NOT NULL,
    lease_expires_at    timestamptz,
    started_at          timestamptz,
    missing_since       timestamptz,
    cancel_requested_at timestamptz,
    lease_token         uuid,
    deliveries          int         NOT NULL DEFAULT 0,
    state               text        NOT NULL,
    state_reason        text,
    settled_as          text,
    worker_id           text,
    attempts            text[],
    progress            text,
    checkpoint          text,
    id                  uuid        NOT NULL,
    priority            smallint    NOT NULL,
    max_attempts        smallint    NOT NULL,
    replay_count        smallint    NOT NULL DEFAULT 0,
    job_type            text        NOT NULL,
    group_key           text,
    lease_seconds       int,
    retry               text,
    tags                text,
    metadata            text,
    traceparent         text,
    tracestate          text,
    replayed_from       uuid,
    payload             text        NOT NULL,
    PRIMARY KEY (lane, id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_analyze_scale_factor = 0.5);

-- Read by claims: equality on the lane, then exactly their ORDER BY. Holds only ready jobs.
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, id) WHERE state = 'ready';

-- The job that is due next is the first entry, however many jobs are scheduled.
CREATE INDEX jobs_due ON jobs (run_at) WHERE state = 'scheduled';

-- Expired leases are a range at its start. Includes worker_id, so that reconciling the leases of a
-- worker reads only the rows of that worker.
CREATE INDEX jobs_leased ON jobs (lease_expires_at, worker_id) WHERE lease_expires_at IS NOT NULL;

-- Completed and cancelled jobs. Partitioned by the time until which they are kept, so that queues
-- with different retention share partitions, and retention is a DROP (or a DETACH, for jobs to be
-- archived) and never a DELETE.
CREATE TABLE finished_jobs (
    lane          int         NOT NULL,
    attempt       smallint    NOT NULL,
    crashes       smallint    NOT NULL,
    run_at        timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    keep_until    timestamptz NOT NULL,
    cancel_requested_at timestamptz,
    deliveries    int         NOT NULL,
    priority      smallint    NOT NULL,
    max_attempts  smallint    NOT NULL,
    replay_count  smallint    NOT NULL,
    archive       boolean     NOT NULL,
    lease_token   uuid,
    id            uuid        NOT NULL,
    state         text        NOT NULL,
    state_reason  text,
    settled_as    text,
    worker_id     text,
    job_type      text        NOT NULL,
    group_key     text,
    attempts      text[],
    progress      text,
    checkpoint    text,
    tags          text,
    metadata      text,
    traceparent   text,
    tracestate    text,
    replayed_from uuid,
    result        text,
    payload       text        NOT NULL
) PARTITION BY RANGE (archive, keep_until);

CREATE INDEX finished_jobs_id ON finished_jobs (lane, id);

-- Takes rows of days without a partition, so that no settlement fails because one is missing.
CREATE TABLE finished_jobs_default PARTITION OF finished_jobs DEFAULT;

-- Dead jobs with their reason and history, until they are replayed, purged or past retention.
CREATE TABLE dead_letters (
    lane          int         NOT NULL,
    id            uuid        NOT NULL,
    attempt       smallint    NOT NULL,
    crashes       smallint    NOT NULL,
    deliveries    int         NOT NULL,
    priority      smallint    NOT NULL,
    max_attempts  smallint    NOT NULL,
    replay_count  smallint    NOT NULL,
    run_at        timestamptz NOT NULL,
    started_at    timestamptz,
    dead_at       timestamptz NOT NULL,
    lease_token   uuid,
    settled_as    text,
    reason        text        NOT NULL,
    error_type    text,
    fingerprint   text        NOT NULL,
    worker_id     text,
    job_type      text        NOT NULL,
    group_key     text,
    lease_seconds int,
    retry         text,
    attempts      text[],
    progress      text,
    checkpoint    text,
    tags          text,
    metadata      text,
    traceparent   text,
    tracestate    text,
    replayed_from uuid,
    payload       text        NOT NULL,
    PRIMARY KEY (lane, id)
);

-- Without the id: with it, stale statistics make the planner look up ids in this index.
CREATE INDEX dead_letters_dead_at ON dead_letters (dead_at);

-- Deduplication keys: idempotency keys of enqueues and claims, on 256 lanes of their own. The
-- primary key serializes transactions that use the same key.
CREATE TABLE keys (
    lane        int         NOT NULL,
    digest      uuid        NOT NULL,
    fingerprint uuid,
    answer      text,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (lane, digest)
);

CREATE INDEX keys_expires_at ON keys (expires_at);

-- Statistics: the statement of every transition inserts one small delta. A maintenance service
-- aggregates the deltas to totals and rates.
CREATE TABLE stat_deltas (
    lane      int         NOT NULL,
    scheduled int         NOT NULL DEFAULT 0,
    at        timestamptz NOT NULL DEFAULT now(),
    blocked   int         NOT NULL DEFAULT 0,
    ready     int         NOT NULL DEFAULT 0,
    running   int         NOT NULL DEFAULT 0,
    completed int         NOT NULL DEFAULT 0,
    cancelled int         NOT NULL DEFAULT 0,
    dead      int         NOT NULL DEFAULT 0,
    enqueued  int         NOT NULL DEFAULT 0,
    failed    int         NOT NULL DEFAULT 0
);

CREATE INDEX stat_deltas_lane ON stat_deltas (lane);

CREATE TABLE stat_totals (
    lane      int    PRIMARY KEY,
    scheduled bigint NOT NULL,
    blocked   bigint NOT NULL,
    ready     bigint NOT NULL,
    running   bigint NOT NULL,
    completed bigint NOT NULL,
    cancelled bigint NOT NULL,
    dead      bigint NOT NULL
);

-- Numbers of events, in buckets of ten seconds.
CREATE TABLE stat_rates (
    lane      int         NOT NULL,
    slot      timestamptz NOT NULL,
    enqueued  bigint      NOT NULL,
    completed bigint      NOT NULL,
    failed    bigint      NOT NULL,
    dead      bigint      NOT NULL,
    PRIMARY KEY (lane, slot)
);

-- Histograms of wait and run times with fixed bucket bounds, so that percentiles cost the same for
-- ten jobs and for ten million.
CREATE TABLE stat_times (
    lane   int         NOT NULL,
    minute timestamptz NOT NULL,
    kind   text        NOT NULL,
    bucket smallint    NOT NULL,
    n      bigint      NOT NULL,
    PRIMARY KEY (lane, minute, kind, bucket)
);

-- Partitions of finished_jobs, one per day of keep_until. These functions run as the schema's
-- owner, so that the broker's role needs no privilege to create or drop tables. If the maintenance
-- service that calls them has to wait for a lock, it gives up and tries again a minute later.

CREATE FUNCTION make_finished_partition(day date, archived boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET timezone = 'UTC' SET lock_timeout = '200ms'
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

CREATE FUNCTION retire_finished_partition(partition text, archived boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms'
AS $$
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
$$;

-- A SECURITY DEFINER function uses objects of this schema only, and its caller's temporary tables
-- last. Only grantees may call it.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION make_finished_partition(date, boolean) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION retire_finished_partition(text, boolean) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE EXECUTE ON FUNCTION make_finished_partition(date, boolean), retire_finished_partition(text, boolean) FROM PUBLIC;
