"""Fixtures: one Postgres server and one broker for the whole run, an empty database and a queue of its own for each test."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import settings

from app import log
from app.house import House, build
from app.settings import Settings
from tests.api import Api
from tests.broker import Broker, threaded_broker
from tests.database import Loop, TestDatabase, create_database, server
from tests.polls import Background, background_calls
from tests.versions import AT_HAND, NOT_AT_HAND

QUICK = Settings.model_construct().model_copy(
    update={"port": 0, "sweep_seconds": 0.05, "poll_seconds": 0.2, "retry_base_seconds": 30.0, "log_level": "error"}
)
_numbers = itertools.count(1)


log.configure("error")

# A shell starts background commands with SIGINT ignored, and the programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in each run and on any machine: no clock, no memory of earlier runs. `--hypothesis-profile default` tries other ones.
settings.register_profile("longshore", derandomize=True, deadline=None, database=None)
settings.load_profile("longshore")


@pytest.fixture(scope="session")
def loop() -> Loop:
    return Loop()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("postgres") / "data") as dsn:
        yield dsn


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--partitioned", action="store_true", help="run on a database whose laned tables are divided by lane")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tried is said, so that a green run is not taken for more than it is."""
    tried, missing = (", ".join(map(str, versions)) for versions in (AT_HAND, NOT_AT_HAND))
    terminalreporter.write_line(f"Postgres tried: {tried}; supported, but no binaries here: {missing or 'none'}")
    for name, was_tried in trials().items():
        terminalreporter.write_line(f"{'Tried' if was_tried else 'Not tried'}: {name}")


def trials() -> dict[str, bool]:
    """Imported late: tests of one room need nothing of these."""
    from tests.change import releases, sealed
    from tests.failover import conftest as failover
    from tests.failover import disk
    from tests.faults.conftest import POOLER

    return {
        "power cut, full disk (they need root, loop devices and mkfs.ext4)": disk.AT_HAND,
        "failover by Patroni (make patroni)": failover.WITH_PATRONI,
        "PgBouncer (if there is one on the PATH)": bool(POOLER),
        f"the release before ({releases.PREVIOUS}, if its commit is in this clone) beside this one": releases.AT_HAND,
        "a read-only file system without privileges (if a mount namespace can be made)": sealed.AT_HAND,
    }


@pytest.fixture(scope="session")
def dsn(postgres: str, loop: Loop, pytestconfig: pytest.Config) -> str:
    return create_database(postgres, loop, "longshore", in_parts=pytestconfig.getoption("--partitioned"))


@pytest.fixture(scope="session")
def database(dsn: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(dsn, loop)
    yield database
    database.close()


@pytest.fixture(scope="session")
def broker(dsn: str) -> Iterator[Broker]:
    with threaded_broker(QUICK, dsn) as broker:
        yield broker


@pytest.fixture
def db(database: TestDatabase) -> TestDatabase:
    """An empty database."""
    database.empty()
    return database


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


@pytest.fixture
def api(broker: Broker, db: TestDatabase, queue: str) -> Api:
    """The broker's HTTP API, with an empty database behind it and this test's own queue as the default."""
    return Api(broker.http, queue)


@pytest.fixture
def http(broker: Broker, db: TestDatabase) -> httpx.Client:
    """For requests that are not what the API wants."""
    return broker.http


@pytest.fixture
def house(dsn: str, loop: Loop, db: TestDatabase) -> Iterator[House]:
    """The rooms of a broker that serves nobody and has no chores, for what happens with no request."""
    house = build(QUICK, dsn)
    loop.run(house.floor.db.open())
    loop.run(house.floor.clock.refresh(house.floor.db))
    yield house
    loop.run(house.floor.db.close())


@pytest.fixture
def background() -> Iterator[Background]:
    """For calls that wait while the test goes on."""
    with background_calls() as calls:
        yield calls


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    return wait_until


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Waits for an event that has no signal. The limit is not a measurement: it only ends a test that would hang."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found
