"""Brokers without an HTTP server: the test calls their services directly and moves their clock."""

from typing import TypeVar
from uuid import UUID

import pytest

from app import broker as broker_module
from app.http.authorization import FULL_ACCESS
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.settings import Settings
from tests.concurrency.model.clock import VirtualClock
from tests.concurrency.model.lease_model import BASE_SECONDS, DEFAULT_LEASE, FACTOR, MAX_CRASHES, MAX_DELIVERIES, Row
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase

R = TypeVar("R")

SETTINGS = TEST_SETTINGS.model_copy(
    update={
        "retry_base_seconds": float(BASE_SECONDS),
        "retry_factor": float(FACTOR),
        "retry_jitter": 0.0,
        "default_lease_seconds": DEFAULT_LEASE,
        "max_crashes": MAX_CRASHES,
        "max_deliveries": MAX_DELIVERIES,
        "notify": False,
    }
)

ROWS = """
SELECT id, state, state_reason, attempt, crashes, deliveries, replay_count, run_at,
    lease_expires_at, cancel_requested_at IS NOT NULL
FROM jobs
UNION ALL
SELECT id, state, state_reason, attempt, crashes, deliveries, replay_count, run_at,
    NULL, cancel_requested_at IS NOT NULL
FROM finished_jobs
UNION ALL
SELECT id, 'dead', reason, attempt, crashes, deliveries, replay_count, run_at, NULL, false
FROM dead_letters
"""


class Broker:
    """The services of one broker, and its background services that move jobs."""

    def __init__(self, dsn: str, clock: VirtualClock, settings: Settings = SETTINGS) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker_module, "DatabaseClock", lambda: clock)
            self.broker_services = broker_module.build_broker(settings, dsn)
        self.infra = self.broker_services.infra
        services = self.broker_services
        self.enqueuer, self.updater, self.long_poll = services.enqueuer, services.updater, services.long_poll
        self.settlements, self.heartbeats = services.settlements, services.heartbeats
        self.dead_letters, self.stats = services.dead_letters, services.stats
        self.lease_rescuer = LeaseRescuer(infra=self.infra, lease_ender=services.lease_ender)
        self.job_scheduler = JobScheduler(infra=self.infra, queues=services.queues, events=services.events)


class BrokerPair:
    """Two brokers that are alone on one database."""

    def __init__(self, database: TestDatabase, loop: Loop) -> None:
        self.database = database
        self.loop = loop
        self.clock = VirtualClock()
        self.brokers = Broker(database.dsn, self.clock), Broker(database.dsn, self.clock)
        for broker in self.brokers:
            loop.run(broker.infra.db.open())

    def rows(self) -> dict[UUID, Row]:
        return {job_id: Row(*row) for job_id, *row in self.database.rows(ROWS)}

    def counts(self, queue: str) -> dict[str, int]:
        """The counts of the statistics, without zeros."""
        counts = self.loop.run(self.brokers[0].stats.queue_stats(queue, FULL_ACCESS)).counts
        return {state: n for state in counts.__struct_fields__ if (n := getattr(counts, state))}

    def close(self) -> None:
        for broker in self.brokers:
            self.loop.run(broker.infra.db.close())
