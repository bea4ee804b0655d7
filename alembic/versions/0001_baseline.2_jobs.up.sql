-- Jobs, deduplication keys, and the tables of limits and dependencies. All these tables have a
-- lane, by which a cluster can be sharded.

-- Unfinished jobs: scheduled, blocked, ready, pending, running.
--
--  * Columns that change come first, the payload comes last. If Postgres writes a new row version
--    to the same page, it logs only the part that differs. The fillfactor leaves space for the new
--    version. Among the columns that change, and among the others, those of fixed width come first.
--  * A pending job waits until the group scheduler admits it. Callers see the job as ready.
--  * `admission` is the number of the admission, in a fair queue the number of the pass. NULL: not
--    admitted.
--  * `uses_slot`: the lease counts against max_running.
--  * `quota_owner`: the name of the key that claimed the job, if the key has a quota of leases.
--  * `due_at`: when a scheduled job becomes due. `start_by`: the start deadline of a job that waits.
--    `ready_admission`: the admission of a ready job. `pending_group`: the group of a pending job, or
--    the empty text. All four are for indexes.
--  * `has_dependents`: other jobs wait for this job. `waiting_for`: the parents that have not
--    finished.
--  * Columns of optional features are NULL for jobs without these features, and then take no space.
CREATE TABLE jobs (
    lane                int         NOT NULL,
    attempt             smallint    NOT NULL DEFAULT 0,
    crashes             smallint    NOT NULL DEFAULT 0,
    run_at              timestamptz NOT NULL,
    lease_expires_at    timestamptz,
    started_at          timestamptz,
    deadline_at         timestamptz,
    expires_at          timestamptz,
    unreported_since    timestamptz,
    cancel_requested_at timestamptz,
    due_at              timestamptz GENERATED ALWAYS AS (CASE WHEN state = 'scheduled' THEN run_at END) STORED,
    start_by            timestamptz GENERATED ALWAYS AS (CASE WHEN state <> 'running' THEN expires_at END) STORED,
    admission           bigint,
    ready_admission     bigint      GENERATED ALWAYS AS (CASE WHEN state = 'ready' THEN admission END) STORED,
    lease_token         uuid,
    deliveries          int         NOT NULL DEFAULT 0,
    uses_slot           boolean,
    has_dependents      boolean,
    state               text        NOT NULL,
    state_reason        text,
    settled_as          text,
    worker_id           text,
    quota_owner         text,
    pending_group       text        GENERATED ALWAYS AS (
        CASE WHEN state = 'pending' THEN coalesce(group_key, '') END
    ) STORED,
    waiting_for         uuid[],
    attempts            text[],
    progress            text,
    checkpoint          text,
    id                  uuid        NOT NULL,
    priority            smallint    NOT NULL,
    max_attempts        smallint    NOT NULL,
    replay_count        smallint    NOT NULL DEFAULT 0,
    lease_seconds       int,
    timeout_seconds     int,
    replayed_from       uuid,
    job_type            text        NOT NULL,
    group_key           text,
    retry               text,
    tags                text,
    metadata            text,
    traceparent         text,
    tracestate          text,
    on_parent_failure   text,
    unique_key          text,
    schedule            text,
    depends_on          uuid[],
    payload             text        NOT NULL,
    PRIMARY KEY (lane, id)
) WITH (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.5
);

-- No index contains a column that a claim or a heartbeat of a plain job changes, and no condition of
-- an index reads one. So these updates are HOT: they insert no index entry, however many indexes
-- there are. Instead of the state, indexes contain generated columns, which are NULL in all states
-- but those that the index serves.

-- For claims of a fair queue.
CREATE INDEX jobs_admitted ON jobs (lane, priority DESC, ready_admission, id) WHERE ready_admission IS NOT NULL;

-- For the job scheduler. The job that is due next is the first entry, however many jobs are
-- scheduled.
CREATE INDEX jobs_due ON jobs (due_at) WHERE due_at IS NOT NULL;

-- Pending jobs, which wait for admission, by group and age. In a fair queue the jobs without a
-- group form a group, too.
CREATE INDEX jobs_pending ON jobs (lane, pending_group, id) WHERE pending_group IS NOT NULL;

-- Admitted jobs, by group: for the number of admitted jobs and the last admission of each priority.
CREATE INDEX jobs_admissions ON jobs (lane, coalesce(group_key, ''), priority, admission) WHERE admission IS NOT NULL;

-- Leases that count against max_running.
CREATE INDEX jobs_uses_slot ON jobs (lane) WHERE uses_slot;

-- Leases that count against the quota of a key.
CREATE INDEX jobs_quota_owner ON jobs (quota_owner) WHERE quota_owner IS NOT NULL;

-- Jobs with a start deadline: they become dead if no worker has started them by then.
CREATE INDEX jobs_start_deadline ON jobs (start_by) WHERE start_by IS NOT NULL;

-- Ready spans: where claims look for ready jobs. A span says that there may be ready jobs of this
-- lane and priority with ids from first_id to last_id. Whether a job is ready, its row says.
--
--  * Every transaction that makes a job ready inserts a span that covers it. A span too many costs a
--    claim one look; a missing one would hide the job.
--  * A claim deletes spans without ready jobs, and moves first_id of others to the first ready job.
--    It locks the span in an earlier statement, so that it sees every job that was ready then. A job
--    that becomes ready later has a span of its own.
--  * In the order of first_id claims find jobs in the order of their ids, even if spans overlap.
--  * The index is not unique, so that no insert waits for a claim that has locked a span. Without a
--    key, a cluster that moves a shard needs the whole row (REPLICA IDENTITY FULL).
CREATE TABLE ready_spans (
    lane     int      NOT NULL,
    priority smallint NOT NULL,
    first_id uuid     NOT NULL,
    last_id  uuid     NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.5
);

ALTER TABLE ready_spans REPLICA IDENTITY FULL;

CREATE INDEX ready_spans_order ON ready_spans (lane, priority DESC, first_id);

-- Lease checks: when to look whether leases of these jobs have expired. One row for each poll of a
-- claim; `claim` is the first half of its lease tokens. Whether a job is leased, and until when, its
-- row says.
--
--  * Every running job is in a check that is due no later than its lease ends, or 60 seconds after
--    the claim. Heartbeats do not touch it: the lease rescuer moves a check that is due to the next
--    end of a lease, and deletes it if no job is running.
--  * A completion of all jobs of the claim at once deletes it.
CREATE TABLE lease_checks (
    lane      int         NOT NULL,
    check_at  timestamptz NOT NULL,
    claim     bytea       NOT NULL,
    worker_id text,
    job_ids   uuid[]      NOT NULL,
    PRIMARY KEY (lane, claim)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.5
);

CREATE INDEX lease_checks_check_at ON lease_checks (check_at);

CREATE INDEX lease_checks_worker_id ON lease_checks (worker_id) WHERE worker_id IS NOT NULL;

-- Completed and cancelled jobs, partitioned by the time until which they are kept. So queues with
-- different retention share partitions. Jobs past their retention are removed by dropping their
-- partition, or by detaching it if they are to be archived, and never by DELETE.
CREATE TABLE finished_jobs (
    lane                int         NOT NULL,
    attempt             smallint    NOT NULL,
    crashes             smallint    NOT NULL,
    run_at              timestamptz NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz NOT NULL,
    keep_until          timestamptz NOT NULL,
    cancel_requested_at timestamptz,
    deliveries          int         NOT NULL,
    priority            smallint    NOT NULL,
    max_attempts        smallint    NOT NULL,
    replay_count        smallint    NOT NULL,
    archive             boolean     NOT NULL,
    lease_token         uuid,
    id                  uuid        NOT NULL,
    replayed_from       uuid,
    state               text        NOT NULL,
    state_reason        text,
    settled_as          text,
    worker_id           text,
    job_type            text        NOT NULL,
    group_key           text,
    attempts            text[],
    progress            text,
    checkpoint          text,
    tags                text,
    metadata            text,
    traceparent         text,
    tracestate          text,
    unique_key          text,
    schedule            text,
    depends_on          uuid[],
    result              text,
    payload             text        NOT NULL
) PARTITION BY RANGE (archive, keep_until);

CREATE INDEX finished_jobs_id ON finished_jobs (lane, id);

-- Contains the rows of days without a partition, so that no settlement fails because of a missing
-- partition.
CREATE TABLE finished_jobs_default PARTITION OF finished_jobs DEFAULT;

-- Dead jobs with their reason and history, until they are replayed, purged or past retention.
CREATE TABLE dead_letters (
    lane            int         NOT NULL,
    id              uuid        NOT NULL,
    attempt         smallint    NOT NULL,
    crashes         smallint    NOT NULL,
    deliveries      int         NOT NULL,
    priority        smallint    NOT NULL,
    max_attempts    smallint    NOT NULL,
    replay_count    smallint    NOT NULL,
    run_at          timestamptz NOT NULL,
    started_at      timestamptz,
    dead_at         timestamptz NOT NULL,
    lease_seconds   int,
    timeout_seconds int,
    lease_token     uuid,
    replayed_from   uuid,
    settled_as      text,
    reason          text        NOT NULL,
    error_type      text,
    fingerprint     text        NOT NULL,
    worker_id       text,
    job_type        text        NOT NULL,
    group_key       text,
    retry           text,
    attempts        text[],
    progress        text,
    checkpoint      text,
    tags            text,
    metadata        text,
    traceparent     text,
    tracestate      text,
    unique_key      text,
    schedule        text,
    depends_on      uuid[],
    payload         text        NOT NULL,
    PRIMARY KEY (lane, id)
);

-- Does not contain the id, because with stale statistics the planner would look up ids in this
-- index.
CREATE INDEX dead_letters_dead_at ON dead_letters (dead_at);

-- Deduplication keys: idempotency keys of enqueues and claims, and unique keys, on 256 lanes of
-- their own. The primary key serializes transactions that use the same key.
--
--  * `job_id`, only for unique keys: the job that got the key last.
--  * `fingerprint`, only for idempotency keys of enqueues: the digest of the request's body.
--  * `response` of an idempotency key: the results of the first enqueue, or the receipt of the
--    first claim. A repeated call returns the same.
--  * `response` of a unique key: `life` if the job has the key while it waits or runs, `window` if
--    the job has the key until `expires_at`.
CREATE TABLE deduplication_keys (
    lane        int         NOT NULL,
    digest      uuid        NOT NULL,
    expires_at  timestamptz NOT NULL,
    job_id      uuid,
    fingerprint uuid,
    response    text,
    PRIMARY KEY (lane, digest)
);

CREATE INDEX deduplication_keys_expires_at ON deduplication_keys (expires_at);

-- Lane locks: one row per lane with limits or held groups. A transaction that admits or claims jobs
-- of such a lane locks its row first. Rows with negative numbers are queue locks (for max_waiting)
-- and caller locks (for max_leases).
CREATE TABLE lane_locks (
    lane int PRIMARY KEY
);

-- Rate-limit usage: how many jobs were claimed under a rate limit, and when. The statement that
-- inserts a row deletes the rows that are older than the period of the rate.
CREATE TABLE rate_limit_usage (
    lane  int         NOT NULL,
    at    timestamptz NOT NULL,
    count int         NOT NULL
);

CREATE INDEX rate_limit_usage_at ON rate_limit_usage (lane, at);

-- Cool-downs of groups. After `until` one job of the group, the half-open probe, runs alone. Its
-- result decides whether the cool-down ends.
CREATE TABLE group_cooldowns (
    lane         int         NOT NULL,
    group_key    text        NOT NULL,
    until        timestamptz NOT NULL,
    probe_job_id uuid,
    PRIMARY KEY (lane, group_key)
);

-- Dependencies: which child waits for which parent. `lane` is the lane of the parent.
CREATE TABLE dependents (
    lane      int  NOT NULL,
    parent_id uuid NOT NULL,
    child_id  uuid NOT NULL,
    PRIMARY KEY (lane, parent_id, child_id)
);

-- Finished parents whose children are still to be unblocked or cancelled. The statement that
-- finishes a parent inserts its row. The dependency resolver deletes the row afterwards.
CREATE TABLE finished_parents (
    lane  int  NOT NULL,
    id    uuid NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (lane, id)
);
