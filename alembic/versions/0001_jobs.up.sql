-- Small tables without a lane: cached in every broker process, never written on the hot path.

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

-- Who does the work that one process is enough for. A lease row and not an advisory lock: it works behind a pooler.
CREATE TABLE leaders (
    chore      text        PRIMARY KEY,
    holder     uuid        NOT NULL,
    held_until timestamptz NOT NULL
);

-- Live jobs: scheduled, blocked, ready, running.
-- Columns that change come first, the payload last: when a new row version lands on the same page, Postgres logs only the
-- part that differs, and fillfactor leaves the room for it.
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

-- The claim reads this one: equality, then exactly its ORDER BY. Jobs that are not ready are not in it.
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, id) WHERE state = 'ready';

-- The next due job is its first entry, however many future ones there are.
CREATE INDEX jobs_due ON jobs (run_at) WHERE state = 'scheduled';

-- Expired leases are a range at its start; worker_id rides along so that reconciliation fetches only its own rows.
CREATE INDEX jobs_leased ON jobs (lease_expires_at, worker_id) WHERE lease_expires_at IS NOT NULL;

-- Completed and cancelled jobs. Partitioned by the instant until which they are kept, so that queues with different retention share
-- partitions and retention is a DROP (or a DETACH, for those to be archived) and never a DELETE.
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

-- Catches what no dated partition takes, so that a settlement never fails for want of one.
CREATE TABLE finished_jobs_default PARTITION OF finished_jobs DEFAULT;

-- Dead jobs with their cause and history, until they are replayed, purged or too old.
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

-- Without the id: with it, stale statistics tempt the planner to look up ids here.
CREATE INDEX dead_letters_dead_at ON dead_letters (dead_at);

-- Idempotency keys of enqueues and claims, on 256 lanes of their own; the primary key makes rivals wait for each other.
CREATE TABLE keys (
    lane        int         NOT NULL,
    digest      uuid        NOT NULL,
    fingerprint uuid,
    answer      text,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (lane, digest)
);

CREATE INDEX keys_expires_at ON keys (expires_at);

-- Statistics: every transition adds one small delta in its own statement; a chore folds the deltas into totals and rates.
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

-- What happened, in slots of ten seconds.
CREATE TABLE stat_rates (
    lane      int         NOT NULL,
    slot      timestamptz NOT NULL,
    enqueued  bigint      NOT NULL,
    completed bigint      NOT NULL,
    failed    bigint      NOT NULL,
    dead      bigint      NOT NULL,
    PRIMARY KEY (lane, slot)
);

-- Wait and run times as counts per bucket of a fixed ladder, so that percentiles cost the same for ten jobs and ten million.
CREATE TABLE stat_times (
    lane   int         NOT NULL,
    minute timestamptz NOT NULL,
    kind   text        NOT NULL,
    bucket smallint    NOT NULL,
    n      bigint      NOT NULL,
    PRIMARY KEY (lane, minute, kind, bucket)
);

-- Partitions of finished_jobs, one per day of keep_until. Functions of the schema's owner, so that the role that serves needs no right
-- to create or drop tables. A chore that has to wait for a
-- lock gives up and tries again a minute later.

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
$$;

-- A definer's function looks only into our schema, its caller's temporary tables last; and only who is granted it may call it.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION make_finished_partition(date, boolean) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION retire_finished_partition(text, boolean) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE EXECUTE ON FUNCTION make_finished_partition(date, boolean), retire_finished_partition(text, boolean) FROM PUBLIC;
