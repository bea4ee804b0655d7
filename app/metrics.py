"""What the process counts for Prometheus. One registry per app, so that two apps in one process do not mix."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "longshore_request_seconds",
            "Time to answer, by operation and status class.",
            ["operation", "status"],
            registry=self.registry,
        )
        # The four layers that keep a claim from being lost, in the order in which they act.
        self.parked_left = self._count(
            "claims_parked_left", "Clients that left a parked poll: nothing was claimed for them."
        )
        self.undone = self._count("claims_undone", "Leases undone because their client had left before the answer.")
        self.replayed = self._count("claims_replayed", "Leases handed out again to a repeated Idempotency-Key.")
        self.reconciled = self._count(
            "claims_reconciled", "Leases taken back because their worker no longer listed them."
        )

        self.enqueued = self._count("jobs_enqueued", "Jobs accepted.")
        self.claimed = self._count("jobs_claimed", "Jobs handed out.")
        self.matched = self._count("jobs_handed_over", "Jobs that were stored as leased to a poll which waited.")
        self.settled = Counter("longshore_jobs_settled", "Settlements by outcome.", ["outcome"], registry=self.registry)
        self.lost = self._count("settlements_lost", "Settlements refused because the lease was lost.")
        self.expired = self._count("leases_expired", "Leases that ran out.")
        self.workers_not_listed = self._count(
            "workers_not_listed",
            "Claims and heartbeats of worker ids beyond the limit of their key: served, but not listed.",
        )
        self.promoted = self._count("jobs_promoted", "Scheduled jobs that became ready.")
        self.parked = Gauge("longshore_polls_parked", "Long polls waiting now.", registry=self.registry)
        self.queue_health = Gauge(
            "longshore_queue_health",
            "Of queues with health limits: 0 ok, 1 warning, 2 critical.",
            ["queue"],
            registry=self.registry,
        )
        self.chore_failures = Counter(
            "longshore_chore_failures", "Background runs that failed.", ["chore"], registry=self.registry
        )
        self.notify_failures = self._count(
            "notify_failures", "Wake-ups that could not be sent; polling covers for them."
        )
        self.database_errors = Counter(
            "longshore_database_errors", "Database calls that failed, by outcome.", ["outcome"], registry=self.registry
        )
        self.frozen_age = self._level(
            "database_frozen_xid_age", "Transactions since the oldest row that is not frozen; alert at 500 million."
        )
        self.multixact_age = self._level(
            "database_multixact_age", "Multixacts since the oldest one that is kept; alert at 500 million."
        )
        self.snapshot_age = self._level(
            "database_snapshot_age", "Transactions since the oldest snapshot in use: it keeps dead rows in the way."
        )
        self.long_statements = self._level(
            "long_statements", "Statements that have run, or waited for a standby, for more than 5 s."
        )
        self.retention_lag = self._level(
            "retention_lag_seconds",
            "Seconds by which retention is behind the database's clock, because that has jumped ahead within the last day; 0 otherwise.",
        )
        self.refused = Counter(
            "longshore_edge_refusals", "Refused before they were requests, by code.", ["code"], registry=self.registry
        )
        self.connections = Gauge("longshore_connections", "Client connections now.", registry=self.registry)
        self.loop_lag = Histogram(
            "longshore_loop_lag_seconds",
            "How late the event loop came to a timer: how long nobody was served.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=self.registry,
        )

    def _count(self, name: str, text: str) -> Counter:
        return Counter(f"longshore_{name}", text, registry=self.registry)

    def _level(self, name: str, text: str) -> Gauge:
        return Gauge(f"longshore_{name}", text, registry=self.registry)
