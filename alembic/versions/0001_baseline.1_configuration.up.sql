-- Small tables without a lane: the configuration, which every broker process caches, and what the
-- brokers record about workers and themselves. The statements that enqueue, claim and settle jobs
-- do not write to them.

-- `config` is the configuration as JSON text, as it was sent. A deleted queue keeps its id and its
-- row, because its finished jobs still have its name. Groups are distributed over `group_lanes`
-- lanes. That number becomes the number of `lanes` as soon as no job of a group is left that would
-- then belong to another lane.
CREATE TABLE queues (
    id            int         PRIMARY KEY CHECK (id BETWEEN 1 AND 65535),
    name          text        NOT NULL UNIQUE,
    lanes         smallint    NOT NULL DEFAULT 1 CHECK (lanes BETWEEN 1 AND 256),
    group_lanes   smallint    NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    paused_at     timestamptz,
    paused_reason text,
    deleted_at    timestamptz,
    config        text        NOT NULL DEFAULT '{}'
);

CREATE TABLE job_types (
    name       text        PRIMARY KEY,
    config     text        NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE schedules (
    name        text        PRIMARY KEY,
    spec        text        NOT NULL,
    paused      boolean     NOT NULL,
    next_run_at timestamptz,
    last_run_at timestamptz,
    last_job_id uuid,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

CREATE INDEX schedules_next_run_at ON schedules (next_run_at);

-- The keys that may call the API. Only an HMAC of the secret is stored. Rows stay when a key is
-- revoked.
CREATE TABLE api_keys (
    id                  text        PRIMARY KEY,
    name                text        NOT NULL,
    mac                 bytea       NOT NULL,
    scopes              text[]      NOT NULL,
    requests_per_second float8,
    max_leases          int,
    created_at          timestamptz NOT NULL,
    expires_at          timestamptz,
    last_used_at        timestamptz,
    revoked_at          timestamptz
);

-- Version numbers of the configuration that processes cache. Every change increments one of them.
-- Reading the numbers is cheap, so processes read them often.
CREATE TABLE config_versions (
    name   text   PRIMARY KEY,
    number bigint NOT NULL
);

INSERT INTO config_versions (name, number) VALUES ('policies', 1), ('cooldowns', 1), ('api_keys', 1);

-- By how much a clock of a broker is behind the database's clock after a jump ahead (see
-- app/db/retention_clock.py). longshore_enqueue_v1 reads it, because SQL cannot detect a jump. Both
-- instants are of the database's clock: after a jump back, or a day later, a row has no effect,
-- even if its broker no longer runs.
CREATE TABLE clock_lags (
    clock     text        NOT NULL,
    broker    uuid        NOT NULL,
    seconds   float8      NOT NULL,
    starts_at timestamptz NOT NULL,
    ends_at   timestamptz NOT NULL,
    PRIMARY KEY (clock, broker)
);

CREATE TABLE workers (
    id           text        PRIMARY KEY,
    directive    text        NOT NULL DEFAULT 'run',
    last_seen_at timestamptz NOT NULL DEFAULT now()
);

-- Which queues and job types workers have polled lately. An empty type stands for any type.
CREATE TABLE poll_history (
    queue          text        NOT NULL,
    job_type       text        NOT NULL,
    last_polled_at timestamptz NOT NULL,
    PRIMARY KEY (queue, job_type)
);

-- Which process runs a service that only one process needs to run. A row with an expiry works
-- behind a pooler, and an advisory lock does not.
CREATE TABLE leaders (
    service    text        PRIMARY KEY,
    holder     uuid        NOT NULL,
    held_until timestamptz NOT NULL
);
