"""The service runner: periodic runs, wake-ups, and leader-only services in one broker at a time."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from app.broker import Broker
from app.maintenance.services import BackgroundService, ServiceRunner
from app.periodic_service import FunctionService
from tests.api.maintenance.conftest import partitions
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database

RARELY = 3600.0


class Runners:
    """Runners as of several brokers, and how often each has run its service."""

    def __init__(self, broker_services: Broker, loop: Loop) -> None:
        self._broker_services = broker_services
        self._loop = loop
        self._runners: dict[str, ServiceRunner] = {}
        self.run_counts: Counter[str] = Counter()

    def start(
        self, name: str, *, leader_only: bool = False, seconds: float = 0.01, failures: int = 0
    ) -> Callable[[], None]:
        async def run_once() -> None:
            self.run_counts[name] += 1
            if self.run_counts[name] <= failures:
                raise RuntimeError("raised by the test")

        service = FunctionService(run_once)

        async def start() -> None:
            self._runners[name] = ServiceRunner(infra=self._broker_services.infra)
            self._runners[name].add(BackgroundService("test", service, seconds, leader_only=leader_only))

        async def wake() -> None:
            service.wake()

        self._loop.run(start())
        return lambda: self._loop.run(wake())

    def stop(self, name: str) -> None:
        self._loop.run(self._runners.pop(name).stop())

    def close(self) -> None:
        for name in list(self._runners):
            self.stop(name)


@pytest.fixture
def runners(broker_services: Broker, loop: Loop, db: TestDatabase) -> Iterator[Runners]:
    db.execute("DELETE FROM leaders WHERE service = 'test'")
    runners = Runners(broker_services, loop)
    yield runners
    runners.close()


def test_service_runs_periodically(runners: Runners, eventually: Callable[..., Any]) -> None:
    runners.start("a")
    eventually(lambda: runners.run_counts["a"] >= 3)


def test_woken_service_runs_now(runners: Runners, eventually: Callable[..., Any]) -> None:
    wake = runners.start("a", seconds=RARELY)
    eventually(lambda: runners.run_counts["a"] == 1)
    wake()
    eventually(lambda: runners.run_counts["a"] == 2)


def test_failed_service_runs_again(runners: Runners, eventually: Callable[..., Any]) -> None:
    runners.start("a", failures=2)
    eventually(lambda: runners.run_counts["a"] >= 4)


def test_stopped_service_does_not_run(runners: Runners, eventually: Callable[..., Any]) -> None:
    runners.start("a")
    eventually(lambda: runners.run_counts["a"])
    runners.stop("a")
    count = runners.run_counts["a"]
    runners.start("b")
    eventually(lambda: runners.run_counts["b"] >= 5)
    assert runners.run_counts["a"] == count


def test_leader_only_service_runs_in_one_broker(runners: Runners, eventually: Callable[..., Any]) -> None:
    runners.start("a", leader_only=True)
    eventually(lambda: runners.run_counts["a"])
    runners.start("b", leader_only=True)
    runners.start("clock")
    eventually(lambda: runners.run_counts["a"] >= 10 and runners.run_counts["clock"] >= 10)
    assert runners.run_counts["b"] == 0


def test_other_broker_leads_after_the_leader_stopped(runners: Runners, eventually: Callable[..., Any]) -> None:
    runners.start("a", leader_only=True)
    eventually(lambda: runners.run_counts["a"])
    runners.start("b", leader_only=True)
    runners.stop("a")
    eventually(lambda: runners.run_counts["b"])


def test_dead_leader_is_replaced_when_its_lease_expires(
    runners: Runners, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    db.execute("INSERT INTO leaders VALUES ('test', $1, now() + interval '1 hour')", uuid4())
    runners.start("a", leader_only=True)
    runners.start("clock")
    eventually(lambda: runners.run_counts["clock"] >= 10)
    assert runners.run_counts["a"] == 0
    db.execute("UPDATE leaders SET held_until = now() - interval '1 second' WHERE service = 'test'")
    eventually(lambda: runners.run_counts["a"])


@pytest.mark.slow
def test_leader_renews_its_lease(runners: Runners, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    runners.start("a", leader_only=True)
    before = eventually(lambda: db.value("SELECT held_until FROM leaders WHERE service = 'test'"))
    eventually(lambda: db.value("SELECT held_until > $1 FROM leaders WHERE service = 'test'", before))


def test_broker_creates_partitions_at_start(postgres: str, loop: Loop, eventually: Callable[..., Any]) -> None:
    dsn = create_database(postgres, loop, "fresh")
    fresh = TestDatabase(dsn, loop)
    with threaded_broker(TEST_SETTINGS, dsn):
        eventually(lambda: len(partitions(fresh, attached=True)) == 3)
    fresh.close()
