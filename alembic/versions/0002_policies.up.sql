-- Configuration: small tables without a lane. Every broker process caches them; no hot path writes
-- to them.

-- `config` is the configuration as JSON text, as it was sent. A deleted queue keeps its id and its
-- row, because its finished jobs still have its name. Groups are spread over `group_lanes` lanes.
-- That number follows `lanes` as soon as no job of a group is left that would then belong to
-- another lane.
ALTER TABLE queues
    ADD COLUMN group_lanes smallint NOT NULL DEFAULT 1,
    ADD COLUMN config text NOT NULL DEFAULT '{}',
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN paused_reason text,
    ADD COLUMN deleted_at timestamptz;

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

-- Version numbers of the configuration that processes cache. Every change increments one. Checking
-- the numbers is cheap, so processes check them often.
CREATE TABLE versions (
    name   text   PRIMARY KEY,
    number bigint NOT NULL
);

INSERT INTO versions (name, number) VALUES ('policies', 1), ('rests', 1);

-- Poll history: which queues and types workers have polled lately. An empty type stands for any
-- type.
CREATE TABLE asks (
    queue    text        NOT NULL,
    job_type text        NOT NULL,
    last_at  timestamptz NOT NULL,
    PRIMARY KEY (queue, job_type)
);

-- Policies of a job. New columns can only follow the payload. They are NULL for jobs without
-- policies, which therefore cost nothing.
ALTER TABLE jobs
    ADD COLUMN turn bigint,
    ADD COLUMN slot boolean,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN timeout_seconds int,
    ADD COLUMN deadline_at timestamptz,
    ADD COLUMN awaited boolean,
    ADD COLUMN awaits uuid[],
    ADD COLUMN on_parent_failure text,
    ADD COLUMN unique_key text,
    ADD COLUMN schedule text,
    ADD COLUMN depends_on uuid[];

ALTER TABLE finished_jobs
    ADD COLUMN unique_key text,
    ADD COLUMN schedule text,
    ADD COLUMN depends_on uuid[];

ALTER TABLE dead_letters
    ADD COLUMN timeout_seconds int,
    ADD COLUMN unique_key text,
    ADD COLUMN schedule text,
    ADD COLUMN depends_on uuid[];

-- For unique keys: the job that has the key.
ALTER TABLE keys
    ADD COLUMN job_id uuid;

-- Lane locks: one row per lane with limits. Every transaction that admits or claims jobs of such a
-- lane locks it first.
CREATE TABLE gates (
    lane  int PRIMARY KEY
);

-- Rate-limit usage: how many jobs were claimed under a rate limit, and when. Inserting a row
-- deletes the rows that are older than the period of the rate.
CREATE TABLE passes (
    lane  int         NOT NULL,
    at    timestamptz NOT NULL,
    n     int         NOT NULL
);

CREATE INDEX passes_at ON passes (lane, at);

-- Cool-downs of groups. After `until` one job, the half-open probe, runs alone. Its result decides
-- whether the cool-down ends.
CREATE TABLE rests (
    lane      int         NOT NULL,
    group_key text        NOT NULL,
    until     timestamptz NOT NULL,
    probe     uuid,
    PRIMARY KEY (lane, group_key)
);

-- Dependencies: which child waits for which parent. The lane is that of the parent.
CREATE TABLE dependents (
    lane   int  NOT NULL,
    parent uuid NOT NULL,
    child  uuid NOT NULL,
    PRIMARY KEY (lane, parent, child)
);

-- Finished parents that have waiting children. Inserted by the statement that finishes the parent,
-- deleted when all children have been resolved.
CREATE TABLE endings (
    lane  int  NOT NULL,
    id    uuid NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (lane, id)
);
