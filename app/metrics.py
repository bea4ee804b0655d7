"""Prometheus metrics of one broker process.

Each application has a registry of its own, so that two applications in one process (tests) do not
share metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """Counters, gauges and histograms, served at GET /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "longshore_request_seconds",
            "Duration of requests, by operation and status class.",
            ["operation", "status"],
            registry=self.registry,
        )
        # One counter for each of the four layers that keep claimed jobs from being lost (see
        # app/leases/long_poll.py).
        self.parked_left = self._counter(
            "claims_parked_left", "Clients that disconnected from a parked poll before it claimed a job."
        )
        self.undone = self._counter(
            "claims_undone", "Leases returned because the client disconnected before the response."
        )
        self.replayed = self._counter(
            "claims_replayed", "Leases sent again, because a claim was repeated with its Idempotency-Key."
        )
        self.reconciled = self._counter(
            "claims_reconciled", "Leases ended because the worker's heartbeats no longer listed them."
        )

        self.enqueued = self._counter("jobs_enqueued", "Jobs enqueued.")
        self.claimed = self._counter("jobs_claimed", "Jobs delivered to workers.")
        self.matched = self._counter("jobs_handed_over", "Jobs stored as already leased to a waiting poller.")
        self.settled = Counter("longshore_jobs_settled", "Settlements by outcome.", ["outcome"], registry=self.registry)
        self.lost = self._counter("settlements_lost", "Settlements rejected because the lease was lost.")
        self.expired = self._counter("leases_expired", "Leases that expired.")
        self.workers_not_listed = self._counter(
            "workers_not_listed",
            "Claims and heartbeats of worker ids beyond the limit of their API key: served, but not listed.",
        )
        self.polls_not_recorded = self._counter(
            "polls_not_recorded",
            "Polled job types beyond the limit of their API key: served, but unknown to explain.",
        )
        self.promoted = self._counter("jobs_promoted", "Scheduled jobs that became ready.")
        self.coverage_repaired = self._counter(
            "coverage_repaired",
            "Ready spans and lease checks that were missing and were added. Should stay 0: report a bug.",
        )
        self.parked = Gauge(
            "longshore_polls_parked", "Open polls: claim requests that claim or wait.", registry=self.registry
        )
        self.queue_health = Gauge(
            "longshore_queue_health",
            "Health of queues with health limits: 0 ok, 1 warning, 2 critical.",
            ["queue"],
            registry=self.registry,
        )
        self.service_failures = Counter(
            "longshore_service_failures",
            "Failed runs of background services, by service.",
            ["service"],
            registry=self.registry,
        )
        self.notify_failures = self._counter(
            "notify_failures", "Wake-ups that could not be sent; periodic polling finds the jobs instead."
        )
        self.database_errors = Counter(
            "longshore_database_errors", "Database calls that failed, by outcome.", ["outcome"], registry=self.registry
        )
        self.frozen_age = self._gauge(
            "database_frozen_xid_age", "Transactions since the oldest row that is not frozen; alert at 500 million."
        )
        self.multixact_age = self._gauge(
            "database_multixact_age", "Multixacts since the oldest one that is kept; alert at 500 million."
        )
        self.snapshot_age = self._gauge(
            "database_snapshot_age",
            "Transactions since the oldest snapshot in use. Vacuum cannot remove rows that died after it.",
        )
        self.long_statements = self._gauge(
            "long_statements", "Statements that have run, or waited for a standby, for more than 5 s."
        )
        self.retention_lag = self._gauge(
            "retention_lag_seconds",
            "Seconds by which retention is behind the database's clock, because the clock jumped ahead "
            "within the last day; 0 otherwise.",
        )
        self.refused = Counter(
            "longshore_edge_refusals",
            "Connections and requests rejected by the HTTP server before a request was complete, by error code.",
            ["code"],
            registry=self.registry,
        )
        self.connections_reset = self._counter(
            "connections_reset",
            "Connections reset because the client did not read its responses: within the timeout, or before those "
            "of all clients took too much memory.",
        )
        self.unread_bytes = self._gauge(
            "unread_response_bytes", "Memory of responses that clients have not read yet, if it is more than 4 KiB."
        )
        self.connections = Gauge("longshore_connections", "Open client connections.", registry=self.registry)
        self.loop_lag = Histogram(
            "longshore_loop_lag_seconds",
            "Delay with which the event loop ran a timer; no request is served during it.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=self.registry,
        )

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(f"longshore_{name}", help_text, registry=self.registry)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"longshore_{name}", help_text, registry=self.registry)
