"""The tables as SQLAlchemy models, for `alembic check` and for the queries that SQLAlchemy builds.

The migrations define the schema; a test compares the models with it.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, UUID

from app.db.columns import generated, key, nullable, partial_index, required

INSTANT = sa.DateTime(timezone=True)
PRIORITY = sa.text("priority DESC")
GROUP = sa.text("coalesce(group_key, '')")

metadata = sa.MetaData()


queues = sa.Table(
    "queues",
    metadata,
    *key(sa.Integer, "id"),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    *required(sa.SmallInteger, "lanes", "group_lanes", default="1"),
    *required(INSTANT, "created_at", default=sa.func.now()),
    *nullable(INSTANT, "paused_at"),
    *nullable(sa.Text, "paused_reason"),
    *nullable(INSTANT, "deleted_at"),
    *required(sa.Text, "config", default="{}"),
)

queue_id_range = sa.Table("queue_id_range", metadata, *key(sa.Integer, "first_id"), *required(sa.Integer, "last_id"))

job_types = sa.Table(
    "job_types",
    metadata,
    *key(sa.Text, "name"),
    *required(sa.Text, "config"),
    *required(INSTANT, "created_at", "updated_at"),
)

schedules = sa.Table(
    "schedules",
    metadata,
    *key(sa.Text, "name"),
    *required(sa.Text, "spec"),
    *required(sa.Boolean, "paused"),
    *nullable(INSTANT, "next_run_at", "last_run_at"),
    *nullable(UUID, "last_job_id"),
    *required(INSTANT, "created_at", "updated_at"),
    sa.Index("schedules_next_run_at", "next_run_at"),
)

config_versions = sa.Table("config_versions", metadata, *key(sa.Text, "name"), *required(sa.BigInteger, "number"))

clock_lags = sa.Table(
    "clock_lags",
    metadata,
    *key(sa.Text, "clock"),
    *key(UUID, "broker"),
    *required(sa.Double, "seconds"),
    *required(INSTANT, "starts_at", "ends_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    *key(sa.Text, "id"),
    *required(sa.Text, "name"),
    *required(BYTEA, "mac"),
    *required(ARRAY(sa.Text), "scopes"),
    *nullable(sa.Double, "requests_per_second"),
    *nullable(sa.Integer, "max_leases"),
    *required(INSTANT, "created_at"),
    *nullable(INSTANT, "expires_at", "last_used_at", "revoked_at"),
)

poll_history = sa.Table(
    "poll_history",
    metadata,
    *key(sa.Text, "queue", "job_type"),
    *required(INSTANT, "last_polled_at"),
)

workers = sa.Table(
    "workers",
    metadata,
    *key(sa.Text, "id"),
    *required(sa.Text, "directive", default="run"),
    *required(INSTANT, "last_seen_at", default=sa.func.now()),
)

leaders = sa.Table(
    "leaders",
    metadata,
    *key(sa.Text, "service"),
    *required(UUID, "holder"),
    *required(INSTANT, "held_until"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    *key(sa.Integer, "lane"),
    *required(sa.SmallInteger, "attempt", "crashes", default="0"),
    *required(INSTANT, "run_at"),
    *nullable(INSTANT, "lease_expires_at", "started_at", "deadline_at", "expires_at"),
    *nullable(INSTANT, "unreported_since", "cancel_requested_at"),
    generated(INSTANT, "due_at", "CASE WHEN state = 'scheduled' THEN run_at END"),
    generated(INSTANT, "start_by", "CASE WHEN state <> 'running' THEN expires_at END"),
    *nullable(sa.BigInteger, "admission"),
    generated(sa.BigInteger, "ready_admission", "CASE WHEN state = 'ready' THEN admission END"),
    *nullable(UUID, "lease_token"),
    *required(sa.Integer, "deliveries", default="0"),
    *nullable(sa.Boolean, "uses_slot", "has_dependents"),
    *required(sa.Text, "state"),
    *nullable(sa.Text, "state_reason", "settled_as", "worker_id", "quota_owner"),
    generated(sa.Text, "pending_group", "CASE WHEN state = 'pending' THEN coalesce(group_key, '') END"),
    *nullable(ARRAY(UUID), "waiting_for"),
    *nullable(ARRAY(sa.Text), "attempts"),
    *nullable(sa.Text, "progress", "checkpoint"),
    *key(UUID, "id"),
    *required(sa.SmallInteger, "priority", "max_attempts"),
    *required(sa.SmallInteger, "replay_count", default="0"),
    *nullable(sa.Integer, "lease_seconds", "timeout_seconds"),
    *nullable(UUID, "replayed_from"),
    *required(sa.Text, "job_type"),
    *nullable(sa.Text, "group_key", "retry", "tags", "metadata", "traceparent", "tracestate"),
    *nullable(sa.Text, "on_parent_failure", "unique_key", "schedule"),
    *nullable(ARRAY(UUID), "depends_on"),
    *required(sa.Text, "payload"),
    partial_index("jobs_admitted", "lane", PRIORITY, "ready_admission", "id", where="ready_admission IS NOT NULL"),
    partial_index("jobs_due", "due_at", where="due_at IS NOT NULL"),
    partial_index("jobs_pending", "lane", "pending_group", "id", where="pending_group IS NOT NULL"),
    partial_index("jobs_admissions", "lane", GROUP, "priority", "admission", where="admission IS NOT NULL"),
    partial_index("jobs_uses_slot", "lane", where="uses_slot"),
    partial_index("jobs_quota_owner", "quota_owner", where="quota_owner IS NOT NULL"),
    partial_index("jobs_start_deadline", "start_by", where="start_by IS NOT NULL"),
)

ready_spans = sa.Table(
    "ready_spans",
    metadata,
    *required(sa.Integer, "lane"),
    *required(sa.SmallInteger, "priority"),
    *required(UUID, "first_id", "last_id"),
    sa.Index("ready_spans_order", "lane", PRIORITY, "first_id"),
)

lease_checks = sa.Table(
    "lease_checks",
    metadata,
    *key(sa.Integer, "lane"),
    *required(INSTANT, "check_at"),
    *key(BYTEA, "claim"),
    *nullable(sa.Text, "worker_id"),
    *required(ARRAY(UUID), "job_ids"),
    sa.Index("lease_checks_check_at", "check_at"),
    partial_index("lease_checks_worker_id", "worker_id", where="worker_id IS NOT NULL"),
)

finished_jobs = sa.Table(
    "finished_jobs",
    metadata,
    *required(sa.Integer, "lane"),
    *required(sa.SmallInteger, "attempt", "crashes"),
    *required(INSTANT, "run_at"),
    *nullable(INSTANT, "started_at"),
    *required(INSTANT, "finished_at", "keep_until"),
    *nullable(INSTANT, "cancel_requested_at"),
    *required(sa.Integer, "deliveries"),
    *required(sa.SmallInteger, "priority", "max_attempts", "replay_count"),
    *required(sa.Boolean, "archive"),
    *nullable(UUID, "lease_token"),
    *required(UUID, "id"),
    *nullable(UUID, "replayed_from"),
    *required(sa.Text, "state"),
    *nullable(sa.Text, "state_reason", "settled_as", "worker_id"),
    *required(sa.Text, "job_type"),
    *nullable(sa.Text, "group_key"),
    *nullable(ARRAY(sa.Text), "attempts"),
    *nullable(sa.Text, "progress", "checkpoint", "tags", "metadata"),
    *nullable(sa.Text, "traceparent", "tracestate", "unique_key", "schedule"),
    *nullable(ARRAY(UUID), "depends_on"),
    *nullable(sa.Text, "result"),
    *required(sa.Text, "payload"),
    sa.Index("finished_jobs_id", "lane", "id"),
    postgresql_partition_by="RANGE (archive, keep_until)",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    *key(sa.Integer, "lane"),
    *key(UUID, "id"),
    *required(sa.SmallInteger, "attempt", "crashes"),
    *required(sa.Integer, "deliveries"),
    *required(sa.SmallInteger, "priority", "max_attempts", "replay_count"),
    *required(INSTANT, "run_at"),
    *nullable(INSTANT, "started_at"),
    *required(INSTANT, "dead_at"),
    *nullable(sa.Integer, "lease_seconds", "timeout_seconds"),
    *nullable(UUID, "lease_token", "replayed_from"),
    *nullable(sa.Text, "settled_as"),
    *required(sa.Text, "reason"),
    *nullable(sa.Text, "error_type"),
    *required(sa.Text, "fingerprint"),
    *nullable(sa.Text, "worker_id"),
    *required(sa.Text, "job_type"),
    *nullable(sa.Text, "group_key", "retry"),
    *nullable(ARRAY(sa.Text), "attempts"),
    *nullable(sa.Text, "progress", "checkpoint", "tags", "metadata"),
    *nullable(sa.Text, "traceparent", "tracestate", "unique_key", "schedule"),
    *nullable(ARRAY(UUID), "depends_on"),
    *required(sa.Text, "payload"),
    sa.Index("dead_letters_dead_at", "dead_at"),
)

# `fingerprint` is the digest of a request body. (The column `fingerprint` of `dead_letters` is the
# text of an error.) `response` depends on the kind of key:
#
#  * idempotency key: the response to the call
#  * key of a claim: the claim receipt
#  * unique key: `window` or `life`, for how long the job has the key
deduplication_keys = sa.Table(
    "deduplication_keys",
    metadata,
    *key(sa.Integer, "lane"),
    *key(UUID, "digest"),
    *required(INSTANT, "expires_at"),
    *nullable(UUID, "job_id", "fingerprint"),
    *nullable(sa.Text, "response"),
    sa.Index("deduplication_keys_expires_at", "expires_at"),
)

lane_locks = sa.Table("lane_locks", metadata, *key(sa.Integer, "lane"))

rate_limit_usage = sa.Table(
    "rate_limit_usage",
    metadata,
    *required(sa.Integer, "lane"),
    *required(INSTANT, "at"),
    *required(sa.Integer, "count"),
    sa.Index("rate_limit_usage_at", "lane", "at"),
)

group_cooldowns = sa.Table(
    "group_cooldowns",
    metadata,
    *key(sa.Integer, "lane"),
    *key(sa.Text, "group_key"),
    *required(INSTANT, "until"),
    *nullable(UUID, "probe_job_id"),
)

dependents = sa.Table("dependents", metadata, *key(sa.Integer, "lane"), *key(UUID, "parent_id", "child_id"))

finished_parents = sa.Table(
    "finished_parents",
    metadata,
    *key(sa.Integer, "lane"),
    *key(UUID, "id"),
    *required(sa.Text, "state"),
)

STATES = ("scheduled", "blocked", "ready", "running", "completed", "cancelled", "dead")

stat_deltas = sa.Table(
    "stat_deltas",
    metadata,
    *required(sa.Integer, "lane"),
    *required(INSTANT, "at", default=sa.func.now()),
    *required(sa.Integer, *STATES, "enqueued", "failed", default="0"),
    sa.Index("stat_deltas_lane", "lane"),
)

stat_totals = sa.Table("stat_totals", metadata, *key(sa.Integer, "lane"), *required(sa.BigInteger, *STATES))

stat_rates = sa.Table(
    "stat_rates",
    metadata,
    *key(sa.Integer, "lane"),
    *key(INSTANT, "bucket_start"),
    *required(sa.BigInteger, "enqueued", "completed", "failed", "dead"),
)

stat_durations = sa.Table(
    "stat_durations",
    metadata,
    *key(sa.Integer, "lane"),
    *key(INSTANT, "minute"),
    *key(sa.Text, "kind"),
    *key(sa.SmallInteger, "bucket"),
    *required(sa.BigInteger, "count"),
)
