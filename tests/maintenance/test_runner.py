"""When chores run: again and again, when nudged, and leader_only ones in one process at a time."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from app.broker import Broker
from app.maintenance.services import PeriodicService, ServiceRunner
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database
from tests.maintenance.conftest import partitions

SELDOM = 3600.0


class Office:
    """Runners as of several processes, and how often each has run its chore."""

    def __init__(self, broker_services: Broker, loop: Loop) -> None:
        self._broker_services = broker_services
        self._loop = loop
        self._runners: dict[str, ServiceRunner] = {}
        self.ran: Counter[str] = Counter()

    def start(
        self, name: str, *, leader_only: bool = False, seconds: float = 0.01, failing: int = 0
    ) -> Callable[[], None]:
        async def run_once() -> None:
            self.ran[name] += 1
            if self.ran[name] <= failing:
                raise RuntimeError("as this test wants it")

        async def start() -> Callable[[], None]:
            self._runners[name] = ServiceRunner(self._broker_services.infra)
            return self._runners[name].start(PeriodicService("probe", run_once, seconds, leader_only=leader_only))

        wake = self._loop.run(start())

        async def woken() -> None:
            wake()

        return lambda: self._loop.run(woken())

    def stop(self, name: str) -> None:
        self._loop.run(self._runners.pop(name).stop())

    def close(self) -> None:
        for name in list(self._runners):
            self.stop(name)


@pytest.fixture
def office(broker_services: Broker, loop: Loop, db: TestDatabase) -> Iterator[Office]:
    db.execute("DELETE FROM leaders WHERE chore = 'probe'")
    office = Office(broker_services, loop)
    yield office
    office.close()


def test_a_chore_runs_again_and_again(office: Office, eventually: Callable[..., Any]) -> None:
    office.start("a")
    eventually(lambda: office.ran["a"] >= 3)


def test_a_nudge_makes_it_run_now(office: Office, eventually: Callable[..., Any]) -> None:
    wake = office.start("a", seconds=SELDOM)
    eventually(lambda: office.ran["a"] == 1)
    wake()
    eventually(lambda: office.ran["a"] == 2)


def test_a_chore_that_fails_runs_again(office: Office, eventually: Callable[..., Any]) -> None:
    office.start("a", failing=2)
    eventually(lambda: office.ran["a"] >= 4)


def test_a_stopped_chore_runs_no_more(office: Office, eventually: Callable[..., Any]) -> None:
    office.start("a")
    eventually(lambda: office.ran["a"])
    office.stop("a")
    ran = office.ran["a"]
    office.start("b")
    eventually(lambda: office.ran["b"] >= 5)
    assert office.ran["a"] == ran


def test_of_two_that_may_lead_one_does(office: Office, eventually: Callable[..., Any]) -> None:
    office.start("a", leader_only=True)
    eventually(lambda: office.ran["a"])
    office.start("b", leader_only=True)
    office.start("clock")
    eventually(lambda: office.ran["a"] >= 10 and office.ran["clock"] >= 10)
    assert office.ran["b"] == 0


def test_when_the_leader_stops_the_other_leads(office: Office, eventually: Callable[..., Any]) -> None:
    office.start("a", leader_only=True)
    eventually(lambda: office.ran["a"])
    office.start("b", leader_only=True)
    office.stop("a")
    eventually(lambda: office.ran["b"])


def test_a_leader_that_died_is_followed_when_its_lease_is_over(
    office: Office, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    db.execute("INSERT INTO leaders VALUES ('probe', $1, now() + interval '1 hour')", uuid4())
    office.start("a", leader_only=True)
    office.start("clock")
    eventually(lambda: office.ran["clock"] >= 10)
    assert office.ran["a"] == 0
    db.execute("UPDATE leaders SET held_until = now() - interval '1 second' WHERE chore = 'probe'")
    eventually(lambda: office.ran["a"])


def test_a_leader_leads_on_as_long_as_it_renews(
    office: Office, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    office.start("a", leader_only=True)
    before = eventually(lambda: db.value("SELECT held_until FROM leaders WHERE chore = 'probe'"))
    eventually(lambda: db.value("SELECT held_until > $1 FROM leaders WHERE chore = 'probe'", before))


def test_a_broker_makes_its_partitions_when_it_starts(
    postgres: str, loop: Loop, eventually: Callable[..., Any]
) -> None:
    dsn = create_database(postgres, loop, "fresh")
    fresh = TestDatabase(dsn, loop)
    with threaded_broker(QUICK, dsn):
        eventually(lambda: len(partitions(fresh, attached=True)) == 3)
    fresh.close()
