"""The tables as SQLAlchemy models, for `alembic check` and for the reads that SQLAlchemy builds.

The migrations define the schema; a test compares both.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, UUID

metadata = sa.MetaData()


def _instant(name: str, *, nullable: bool = True) -> "sa.Column[object]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(*names: str) -> "list[sa.Column[object]]":
    return [sa.Column(name, sa.Text) for name in names]


queues = sa.Table(
    "queues",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("lanes", sa.SmallInteger, nullable=False, server_default="1"),
    sa.Column("group_lanes", sa.SmallInteger, nullable=False, server_default="1"),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    _instant("paused_at"),
    *_text("paused_reason"),
    _instant("deleted_at"),
    sa.Column("config", sa.Text, nullable=False, server_default="{}"),
)

job_types = sa.Table(
    "job_types",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("config", sa.Text, nullable=False),
    _instant("created_at", nullable=False),
    _instant("updated_at", nullable=False),
)

schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("paused", sa.Boolean, nullable=False),
    _instant("next_run_at"),
    _instant("last_run_at"),
    sa.Column("last_job_id", UUID),
    _instant("created_at", nullable=False),
    _instant("updated_at", nullable=False),
    sa.Index("schedules_next_run_at", "next_run_at"),
)

config_versions = sa.Table(
    "config_versions",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("mac", BYTEA, nullable=False),
    sa.Column("scopes", ARRAY(sa.Text), nullable=False),
    sa.Column("requests_per_second", sa.Double),
    sa.Column("max_leases", sa.Integer),
    _instant("created_at", nullable=False),
    _instant("expires_at"),
    _instant("last_used_at"),
    _instant("revoked_at"),
)

poll_history = sa.Table(
    "poll_history",
    metadata,
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("job_type", sa.Text, primary_key=True),
    _instant("last_polled_at", nullable=False),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("directive", sa.Text, nullable=False, server_default="run"),
    sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

leaders = sa.Table(
    "leaders",
    metadata,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("holder", UUID, nullable=False),
    _instant("held_until", nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("crashes", sa.SmallInteger, nullable=False, server_default="0"),
    _instant("run_at", nullable=False),
    _instant("lease_expires_at"),
    _instant("started_at"),
    _instant("deadline_at"),
    _instant("expires_at"),
    _instant("unreported_since"),
    _instant("cancel_requested_at"),
    sa.Column("admission", sa.BigInteger),
    sa.Column("lease_token", UUID),
    sa.Column("deliveries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("uses_slot", sa.Boolean),
    sa.Column("has_dependents", sa.Boolean),
    sa.Column("state", sa.Text, nullable=False),
    *_text("state_reason", "settled_as", "worker_id", "quota_owner"),
    sa.Column("waiting_for", ARRAY(UUID)),
    sa.Column("attempts", ARRAY(sa.Text)),
    *_text("progress", "checkpoint"),
    sa.Column("id", UUID, primary_key=True),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("max_attempts", sa.SmallInteger, nullable=False),
    sa.Column("replay_count", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("lease_seconds", sa.Integer),
    sa.Column("timeout_seconds", sa.Integer),
    sa.Column("replayed_from", UUID),
    sa.Column("job_type", sa.Text, nullable=False),
    *_text("group_key", "retry", "tags", "metadata", "traceparent", "tracestate"),
    *_text("on_parent_failure", "unique_key", "schedule"),
    sa.Column("depends_on", ARRAY(UUID)),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("jobs_ready", "lane", sa.text("priority DESC"), "id", postgresql_where=sa.text("state = 'ready'")),
    sa.Index(
        "jobs_admitted",
        "lane",
        sa.text("priority DESC"),
        "admission",
        "id",
        postgresql_where=sa.text("state = 'ready' AND admission IS NOT NULL"),
    ),
    sa.Index("jobs_due", "run_at", postgresql_where=sa.text("state = 'scheduled'")),
    sa.Index("jobs_leased", "lease_expires_at", "worker_id", postgresql_where=sa.text("lease_expires_at IS NOT NULL")),
    sa.Index(
        "jobs_pending", "lane", sa.text("coalesce(group_key, '')"), "id", postgresql_where=sa.text("state = 'pending'")
    ),
    sa.Index(
        "jobs_admissions",
        "lane",
        sa.text("coalesce(group_key, '')"),
        "priority",
        "admission",
        postgresql_where=sa.text("admission IS NOT NULL"),
    ),
    sa.Index("jobs_uses_slot", "lane", postgresql_where=sa.text("uses_slot")),
    sa.Index(
        "jobs_quota_owner",
        "quota_owner",
        postgresql_where=sa.text("quota_owner IS NOT NULL AND lease_expires_at IS NOT NULL"),
    ),
    sa.Index(
        "jobs_start_deadline",
        "expires_at",
        postgresql_where=sa.text("expires_at IS NOT NULL AND lease_expires_at IS NULL"),
    ),
)

finished_jobs = sa.Table(
    "finished_jobs",
    metadata,
    sa.Column("lane", sa.Integer, nullable=False),
    sa.Column("attempt", sa.SmallInteger, nullable=False),
    sa.Column("crashes", sa.SmallInteger, nullable=False),
    _instant("run_at", nullable=False),
    _instant("started_at"),
    _instant("finished_at", nullable=False),
    _instant("keep_until", nullable=False),
    _instant("cancel_requested_at"),
    sa.Column("deliveries", sa.Integer, nullable=False),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("max_attempts", sa.SmallInteger, nullable=False),
    sa.Column("replay_count", sa.SmallInteger, nullable=False),
    sa.Column("archive", sa.Boolean, nullable=False),
    sa.Column("lease_token", UUID),
    sa.Column("id", UUID, nullable=False),
    sa.Column("replayed_from", UUID),
    sa.Column("state", sa.Text, nullable=False),
    *_text("state_reason", "settled_as", "worker_id"),
    sa.Column("job_type", sa.Text, nullable=False),
    *_text("group_key"),
    sa.Column("attempts", ARRAY(sa.Text)),
    *_text("progress", "checkpoint", "tags", "metadata", "traceparent", "tracestate", "unique_key", "schedule"),
    sa.Column("depends_on", ARRAY(UUID)),
    *_text("result"),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("finished_jobs_id", "lane", "id"),
    postgresql_partition_by="RANGE (archive, keep_until)",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", UUID, primary_key=True),
    sa.Column("attempt", sa.SmallInteger, nullable=False),
    sa.Column("crashes", sa.SmallInteger, nullable=False),
    sa.Column("deliveries", sa.Integer, nullable=False),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("max_attempts", sa.SmallInteger, nullable=False),
    sa.Column("replay_count", sa.SmallInteger, nullable=False),
    _instant("run_at", nullable=False),
    _instant("started_at"),
    _instant("dead_at", nullable=False),
    sa.Column("lease_seconds", sa.Integer),
    sa.Column("timeout_seconds", sa.Integer),
    sa.Column("lease_token", UUID),
    sa.Column("replayed_from", UUID),
    *_text("settled_as"),
    sa.Column("reason", sa.Text, nullable=False),
    *_text("error_type"),
    sa.Column("fingerprint", sa.Text, nullable=False),
    *_text("worker_id"),
    sa.Column("job_type", sa.Text, nullable=False),
    *_text("group_key", "retry"),
    sa.Column("attempts", ARRAY(sa.Text)),
    *_text("progress", "checkpoint", "tags", "metadata", "traceparent", "tracestate", "unique_key", "schedule"),
    sa.Column("depends_on", ARRAY(UUID)),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("dead_letters_dead_at", "dead_at"),
)

deduplication_keys = sa.Table(
    "deduplication_keys",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", UUID, primary_key=True),
    _instant("expires_at", nullable=False),
    sa.Column("job_id", UUID),
    sa.Column("fingerprint", UUID),
    *_text("response"),
    sa.Index("deduplication_keys_expires_at", "expires_at"),
)

lane_locks = sa.Table("lane_locks", metadata, sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False))

rate_limit_usage = sa.Table(
    "rate_limit_usage",
    metadata,
    sa.Column("lane", sa.Integer, nullable=False),
    _instant("at", nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Index("rate_limit_usage_at", "lane", "at"),
)

group_cooldowns = sa.Table(
    "group_cooldowns",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("group_key", sa.Text, primary_key=True),
    _instant("until", nullable=False),
    sa.Column("probe_job_id", UUID),
)

dependents = sa.Table(
    "dependents",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("parent_id", UUID, primary_key=True),
    sa.Column("child_id", UUID, primary_key=True),
)

finished_parents = sa.Table(
    "finished_parents",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", UUID, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
)

STATES = ("scheduled", "blocked", "ready", "running", "completed", "cancelled", "dead")

stat_deltas = sa.Table(
    "stat_deltas",
    metadata,
    sa.Column("lane", sa.Integer, nullable=False),
    sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    *[sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in (*STATES, "enqueued", "failed")],
    sa.Index("stat_deltas_lane", "lane"),
)

stat_totals = sa.Table(
    "stat_totals",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    *[sa.Column(name, sa.BigInteger, nullable=False) for name in STATES],
)

stat_rates = sa.Table(
    "stat_rates",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("bucket_start", sa.DateTime(timezone=True), primary_key=True),
    *[sa.Column(name, sa.BigInteger, nullable=False) for name in ("enqueued", "completed", "failed", "dead")],
)

stat_durations = sa.Table(
    "stat_durations",
    metadata,
    sa.Column("lane", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("minute", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("bucket", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
)
