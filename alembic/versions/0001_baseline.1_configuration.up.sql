-- Small tables without a lane: the configuration, which every broker process caches, and records
-- about workers and brokers. The statements that enqueue, claim and settle jobs do not write to
-- these tables.

-- Queues. `config` is the configuration as JSON text, as it was sent. A deleted queue keeps its id
-- and its row, because the API still shows the name of the queue in finished jobs. Groups are
-- distributed over `group_lanes` lanes. If `lanes` is changed, `group_lanes` follows as soon as the
-- queue has no live job and no dead letter with a group, because a group in two lanes would lose
-- its order.
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

-- The ids that new queues of this installation get; one row. `migrate` stores LONGSHORE_QUEUE_IDS
-- here, because longshore_enqueue_v1 cannot read the settings of the brokers.
CREATE TABLE queue_id_range (
    first_id int PRIMARY KEY CHECK (first_id >= 1),
    last_id  int NOT NULL CHECK (last_id BETWEEN first_id AND 65535)
);

INSERT INTO queue_id_range (first_id, last_id) VALUES (1, 65535);

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

-- API keys. Only an HMAC of the secret is stored. The row of a revoked key is kept.
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

-- Clock lags: by how many seconds a clock of a broker is behind the database's clock after the
-- database's clock has jumped ahead (see app/db/retention_clock.py). longshore_enqueue_v1 reads
-- this table, because SQL cannot detect a jump. `starts_at` and `ends_at` are times of the
-- database's clock. So a row has no effect after a jump back, or a day later, even if its broker no
-- longer runs.
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

-- Leaders: which process runs a background service that must not run twice. The table has rows with
-- an expiry, because advisory locks do not work behind a connection pooler.
CREATE TABLE leaders (
    service    text        PRIMARY KEY,
    holder     uuid        NOT NULL,
    held_until timestamptz NOT NULL
);
