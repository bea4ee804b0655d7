-- What teams agree on: small tables without a lane, cached in every broker process, never written on the hot path.

-- The configuration as JSON text, as it was sent. A deleted queue keeps its number and its row: its finished jobs still bear its name.
-- Among `group_lanes` lanes groups are spread; it follows `lanes` when no job of a group is left that would be in another one then.
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

-- Grows with every change of what processes cache. One number to look at, so that looking often costs nothing.
CREATE TABLE versions (
    name   text   PRIMARY KEY,
    number bigint NOT NULL
);

INSERT INTO versions (name, number) VALUES ('policies', 1), ('rests', 1);

-- Which queues and types workers have asked for lately; an empty type stands for any.
CREATE TABLE asks (
    queue    text        NOT NULL,
    job_type text        NOT NULL,
    last_at  timestamptz NOT NULL,
    PRIMARY KEY (queue, job_type)
);

-- What a job needs of all this. Behind the payload, as a new column must be; NULL for jobs without policies, which so cost nothing.
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

-- For unique keys: the job that holds the key.
ALTER TABLE keys
    ADD COLUMN job_id uuid;

-- A row per lane with limits, locked first by whoever decides who may run.
CREATE TABLE gates (
    lane  int PRIMARY KEY
);

-- How many jobs a rate let through, and when; older ones than the rate's span are deleted as new ones come.
CREATE TABLE passes (
    lane  int         NOT NULL,
    at    timestamptz NOT NULL,
    n     int         NOT NULL
);

CREATE INDEX passes_at ON passes (lane, at);

-- Groups that cool down. After `until` one job goes first, the probe; what becomes of it decides for the others.
CREATE TABLE rests (
    lane      int         NOT NULL,
    group_key text        NOT NULL,
    until     timestamptz NOT NULL,
    probe     uuid,
    PRIMARY KEY (lane, group_key)
);

-- Who waits for whom, in the lane of the one that is waited for.
CREATE TABLE dependents (
    lane   int  NOT NULL,
    parent uuid NOT NULL,
    child  uuid NOT NULL,
    PRIMARY KEY (lane, parent, child)
);

-- Jobs that have ended and that others wait for: written by the statement that ends them, taken out when all who waited know.
CREATE TABLE endings (
    lane  int  NOT NULL,
    id    uuid NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (lane, id)
);
