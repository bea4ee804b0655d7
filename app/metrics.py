"""What the process counts for Prometheus. One registry per app, so that two apps in one process do not mix."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "longshore_request_seconds", "Time to answer, by operation and status class.", ["operation", "status"], registry=self.registry
        )
        # The four layers that keep a claim from being lost, in the order in which they act.
        self.parked_left = self._count("claims_parked_left", "Clients that left a parked poll: nothing was claimed for them.")
        self.undone = self._count("claims_undone", "Leases undone because their client had left before the answer.")
        self.replayed = self._count("claims_replayed", "Leases handed out again to a repeated Idempotency-Key.")
        self.reconciled = self._count("claims_reconciled", "Leases taken back because their worker no longer listed them.")

        self.enqueued = self._count("jobs_enqueued", "Jobs accepted.")
        self.claimed = self._count("jobs_claimed", "Jobs handed out.")
        self.settled = Counter("longshore_jobs_settled", "Settlements by outcome.", ["outcome"], registry=self.registry)
        self.lost = self._count("settlements_lost", "Settlements refused because the lease was lost.")
        self.expired = self._count("leases_expired", "Leases that ran out.")
        self.promoted = self._count("jobs_promoted", "Scheduled jobs that became ready.")
        self.parked = Gauge("longshore_polls_parked", "Long polls waiting now.", registry=self.registry)
        self.queue_health = Gauge(
            "longshore_queue_health", "Of queues with health limits: 0 ok, 1 warning, 2 critical.", ["queue"], registry=self.registry
        )
        self.chore_failures = Counter("longshore_chore_failures", "Background runs that failed.", ["chore"], registry=self.registry)
        self.notify_failures = self._count("notify_failures", "Wake-ups that could not be sent; polling covers for them.")
        self.database_errors = Counter(
            "longshore_database_errors", "Database calls that failed, by outcome.", ["outcome"], registry=self.registry
        )

    def _count(self, name: str, text: str) -> Counter:
        return Counter(f"longshore_{name}", text, registry=self.registry)
