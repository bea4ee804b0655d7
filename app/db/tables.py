"""The tables as SQLAlchemy models, for `alembic check` and for the queries that SQLAlchemy builds.

The migrations define the schema; a test compares the models with it.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, UUID
from sqlalchemy.types import TypeEngine

ColumnType = TypeEngine[Any] | type[TypeEngine[Any]]
INSTANT = sa.DateTime(timezone=True)
PRIORITY = sa.text("priority DESC")
GROUP = sa.text("coalesce(group_key, '')")

metadata = sa.MetaData()


def _key(column_type: ColumnType, *names: str) -> "list[sa.Column[object]]":
    return [sa.Column(name, column_type, primary_key=True, autoincrement=False) for name in names]


def _required(
    column_type: ColumnType, *names: str, default: str | sa.ColumnElement[Any] | None = None
) -> "list[sa.Column[object]]":
    return [sa.Column(name, column_type, nullable=False, server_default=default) for name in names]


def _nullable(column_type: ColumnType, *names: str) -> "list[sa.Column[object]]":
    return [sa.Column(name, column_type) for name in names]


def _generated(column_type: ColumnType, name: str, expression: str) -> "sa.Column[object]":
    return sa.Column(name, column_type, sa.Computed(expression, persisted=True))


def _partial_index(name: str, *columns: str | sa.TextClause, where: str) -> sa.Index:
    return sa.Index(name, *columns, postgresql_where=sa.text(where))


queues = sa.Table(
    "queues",
    metadata,
    *_key(sa.Integer, "id"),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    *_required(sa.SmallInteger, "lanes", "group_lanes", default="1"),
    *_required(INSTANT, "created_at", default=sa.func.now()),
    *_nullable(INSTANT, "paused_at"),
    *_nullable(sa.Text, "paused_reason"),
    *_nullable(INSTANT, "deleted_at"),
    *_required(sa.Text, "config", default="{}"),
)

queue_id_range = sa.Table("queue_id_range", metadata, *_key(sa.Integer, "first_id"), *_required(sa.Integer, "last_id"))

job_types = sa.Table(
    "job_types",
    metadata,
    *_key(sa.Text, "name"),
    *_required(sa.Text, "config"),
    *_required(INSTANT, "created_at", "updated_at"),
)

schedules = sa.Table(
    "schedules",
    metadata,
    *_key(sa.Text, "name"),
    *_required(sa.Text, "spec"),
    *_required(sa.Boolean, "paused"),
    *_nullable(INSTANT, "next_run_at", "last_run_at"),
    *_nullable(UUID, "last_job_id"),
    *_required(INSTANT, "created_at", "updated_at"),
    sa.Index("schedules_next_run_at", "next_run_at"),
)

config_versions = sa.Table("config_versions", metadata, *_key(sa.Text, "name"), *_required(sa.BigInteger, "number"))

clock_lags = sa.Table(
    "clock_lags",
    metadata,
    *_key(sa.Text, "clock"),
    *_key(UUID, "broker"),
    *_required(sa.Double, "seconds"),
    *_required(INSTANT, "starts_at", "ends_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    *_key(sa.Text, "id"),
    *_required(sa.Text, "name"),
    *_required(BYTEA, "mac"),
    *_required(ARRAY(sa.Text), "scopes"),
    *_nullable(sa.Double, "requests_per_second"),
    *_nullable(sa.Integer, "max_leases"),
    *_required(INSTANT, "created_at"),
    *_nullable(INSTANT, "expires_at", "last_used_at", "revoked_at"),
)

poll_history = sa.Table(
    "poll_history",
    metadata,
    *_key(sa.Text, "queue", "job_type"),
    *_required(INSTANT, "last_polled_at"),
)

workers = sa.Table(
    "workers",
    metadata,
    *_key(sa.Text, "id"),
    *_required(sa.Text, "directive", default="run"),
    *_required(INSTANT, "last_seen_at", default=sa.func.now()),
)

leaders = sa.Table(
    "leaders",
    metadata,
    *_key(sa.Text, "service"),
    *_required(UUID, "holder"),
    *_required(INSTANT, "held_until"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    *_key(sa.Integer, "lane"),
    *_required(sa.SmallInteger, "attempt", "crashes", default="0"),
    *_required(INSTANT, "run_at"),
    *_nullable(INSTANT, "lease_expires_at", "started_at", "deadline_at", "expires_at"),
    *_nullable(INSTANT, "unreported_since", "cancel_requested_at"),
    _generated(INSTANT, "due_at", "CASE WHEN state = 'scheduled' THEN run_at END"),
    _generated(INSTANT, "start_by", "CASE WHEN state <> 'running' THEN expires_at END"),
    *_nullable(sa.BigInteger, "admission"),
    _generated(sa.BigInteger, "ready_admission", "CASE WHEN state = 'ready' THEN admission END"),
    *_nullable(UUID, "lease_token"),
    *_required(sa.Integer, "deliveries", default="0"),
    *_nullable(sa.Boolean, "uses_slot", "has_dependents"),
    *_required(sa.Text, "state"),
    *_nullable(sa.Text, "state_reason", "settled_as", "worker_id", "quota_owner"),
    _generated(sa.Text, "pending_group", "CASE WHEN state = 'pending' THEN coalesce(group_key, '') END"),
    *_nullable(ARRAY(UUID), "waiting_for"),
    *_nullable(ARRAY(sa.Text), "attempts"),
    *_nullable(sa.Text, "progress", "checkpoint"),
    *_key(UUID, "id"),
    *_required(sa.SmallInteger, "priority", "max_attempts"),
    *_required(sa.SmallInteger, "replay_count", default="0"),
    *_nullable(sa.Integer, "lease_seconds", "timeout_seconds"),
    *_nullable(UUID, "replayed_from"),
    *_required(sa.Text, "job_type"),
    *_nullable(sa.Text, "group_key", "retry", "tags", "metadata", "traceparent", "tracestate"),
    *_nullable(sa.Text, "on_parent_failure", "unique_key", "schedule"),
    *_nullable(ARRAY(UUID), "depends_on"),
    *_required(sa.Text, "payload"),
    _partial_index("jobs_admitted", "lane", PRIORITY, "ready_admission", "id", where="ready_admission IS NOT NULL"),
    _partial_index("jobs_due", "due_at", where="due_at IS NOT NULL"),
    _partial_index("jobs_pending", "lane", "pending_group", "id", where="pending_group IS NOT NULL"),
    _partial_index("jobs_admissions", "lane", GROUP, "priority", "admission", where="admission IS NOT NULL"),
    _partial_index("jobs_uses_slot", "lane", where="uses_slot"),
    _partial_index("jobs_quota_owner", "quota_owner", where="quota_owner IS NOT NULL"),
    _partial_index("jobs_start_deadline", "start_by", where="start_by IS NOT NULL"),
)

ready_spans = sa.Table(
    "ready_spans",
    metadata,
    *_required(sa.Integer, "lane"),
    *_required(sa.SmallInteger, "priority"),
    *_required(UUID, "first_id", "last_id"),
    sa.Index("ready_spans_order", "lane", PRIORITY, "first_id"),
)

lease_checks = sa.Table(
    "lease_checks",
    metadata,
    *_key(sa.Integer, "lane"),
    *_required(INSTANT, "check_at"),
    *_key(BYTEA, "claim"),
    *_nullable(sa.Text, "worker_id"),
    *_required(ARRAY(UUID), "job_ids"),
    sa.Index("lease_checks_check_at", "check_at"),
    _partial_index("lease_checks_worker_id", "worker_id", where="worker_id IS NOT NULL"),
)

finished_jobs = sa.Table(
    "finished_jobs",
    metadata,
    *_required(sa.Integer, "lane"),
    *_required(sa.SmallInteger, "attempt", "crashes"),
    *_required(INSTANT, "run_at"),
    *_nullable(INSTANT, "started_at"),
    *_required(INSTANT, "finished_at", "keep_until"),
    *_nullable(INSTANT, "cancel_requested_at"),
    *_required(sa.Integer, "deliveries"),
    *_required(sa.SmallInteger, "priority", "max_attempts", "replay_count"),
    *_required(sa.Boolean, "archive"),
    *_nullable(UUID, "lease_token"),
    *_required(UUID, "id"),
    *_nullable(UUID, "replayed_from"),
    *_required(sa.Text, "state"),
    *_nullable(sa.Text, "state_reason", "settled_as", "worker_id"),
    *_required(sa.Text, "job_type"),
    *_nullable(sa.Text, "group_key"),
    *_nullable(ARRAY(sa.Text), "attempts"),
    *_nullable(sa.Text, "progress", "checkpoint", "tags", "metadata"),
    *_nullable(sa.Text, "traceparent", "tracestate", "unique_key", "schedule"),
    *_nullable(ARRAY(UUID), "depends_on"),
    *_nullable(sa.Text, "result"),
    *_required(sa.Text, "payload"),
    sa.Index("finished_jobs_id", "lane", "id"),
    postgresql_partition_by="RANGE (archive, keep_until)",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    *_key(sa.Integer, "lane"),
    *_key(UUID, "id"),
    *_required(sa.SmallInteger, "attempt", "crashes"),
    *_required(sa.Integer, "deliveries"),
    *_required(sa.SmallInteger, "priority", "max_attempts", "replay_count"),
    *_required(INSTANT, "run_at"),
    *_nullable(INSTANT, "started_at"),
    *_required(INSTANT, "dead_at"),
    *_nullable(sa.Integer, "lease_seconds", "timeout_seconds"),
    *_nullable(UUID, "lease_token", "replayed_from"),
    *_nullable(sa.Text, "settled_as"),
    *_required(sa.Text, "reason"),
    *_nullable(sa.Text, "error_type"),
    *_required(sa.Text, "fingerprint"),
    *_nullable(sa.Text, "worker_id"),
    *_required(sa.Text, "job_type"),
    *_nullable(sa.Text, "group_key", "retry"),
    *_nullable(ARRAY(sa.Text), "attempts"),
    *_nullable(sa.Text, "progress", "checkpoint", "tags", "metadata"),
    *_nullable(sa.Text, "traceparent", "tracestate", "unique_key", "schedule"),
    *_nullable(ARRAY(UUID), "depends_on"),
    *_required(sa.Text, "payload"),
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
    *_key(sa.Integer, "lane"),
    *_key(UUID, "digest"),
    *_required(INSTANT, "expires_at"),
    *_nullable(UUID, "job_id", "fingerprint"),
    *_nullable(sa.Text, "response"),
    sa.Index("deduplication_keys_expires_at", "expires_at"),
)

lane_locks = sa.Table("lane_locks", metadata, *_key(sa.Integer, "lane"))

rate_limit_usage = sa.Table(
    "rate_limit_usage",
    metadata,
    *_required(sa.Integer, "lane"),
    *_required(INSTANT, "at"),
    *_required(sa.Integer, "count"),
    sa.Index("rate_limit_usage_at", "lane", "at"),
)

group_cooldowns = sa.Table(
    "group_cooldowns",
    metadata,
    *_key(sa.Integer, "lane"),
    *_key(sa.Text, "group_key"),
    *_required(INSTANT, "until"),
    *_nullable(UUID, "probe_job_id"),
)

dependents = sa.Table("dependents", metadata, *_key(sa.Integer, "lane"), *_key(UUID, "parent_id", "child_id"))

finished_parents = sa.Table(
    "finished_parents",
    metadata,
    *_key(sa.Integer, "lane"),
    *_key(UUID, "id"),
    *_required(sa.Text, "state"),
)

STATES = ("scheduled", "blocked", "ready", "running", "completed", "cancelled", "dead")

stat_deltas = sa.Table(
    "stat_deltas",
    metadata,
    *_required(sa.Integer, "lane"),
    *_required(INSTANT, "at", default=sa.func.now()),
    *_required(sa.Integer, *STATES, "enqueued", "failed", default="0"),
    sa.Index("stat_deltas_lane", "lane"),
)

stat_totals = sa.Table("stat_totals", metadata, *_key(sa.Integer, "lane"), *_required(sa.BigInteger, *STATES))

stat_rates = sa.Table(
    "stat_rates",
    metadata,
    *_key(sa.Integer, "lane"),
    *_key(INSTANT, "bucket_start"),
    *_required(sa.BigInteger, "enqueued", "completed", "failed", "dead"),
)

stat_durations = sa.Table(
    "stat_durations",
    metadata,
    *_key(sa.Integer, "lane"),
    *_key(INSTANT, "minute"),
    *_key(sa.Text, "kind"),
    *_key(sa.SmallInteger, "bucket"),
    *_required(sa.BigInteger, "count"),
)
