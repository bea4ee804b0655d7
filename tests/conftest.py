"""Shared fixtures: one Postgres server and one broker per test run; per test an empty database
and a queue of its own."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from app import log
from app.broker import Broker, build_broker
from app.settings import Settings
from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.database import Loop, TestDatabase, create_database, server
from tests.polls import Background, background_calls
from tests.versions import AVAILABLE_VERSIONS, MISSING_VERSIONS

TEST_SETTINGS = Settings.model_construct().model_copy(
    update={"port": 0, "sweep_seconds": 0.05, "poll_seconds": 0.2, "retry_base_seconds": 30.0, "log_level": "error"}
)
_numbers = itertools.count(1)


log.configure("error")

# A shell starts background commands with SIGINT ignored, and nohup ignores SIGHUP. Programs started by
# tests inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Hypothesis uses the same examples in each run and on any machine: no clock, no record of earlier
# runs; and on a busy machine examples may be slow to generate. `--hypothesis-profile default` tries
# other examples.
settings.register_profile(
    "longshore", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("longshore")


@pytest.fixture(scope="session")
def loop() -> Loop:
    return Loop()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("postgres") / "data") as dsn:
        yield dsn


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--partitioned", action="store_true", help="run on a database whose tables with lanes are partitioned by lane"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the tests that could not run here, so that a green run is not overestimated."""
    tested, missing = (", ".join(map(str, versions)) for versions in (AVAILABLE_VERSIONS, MISSING_VERSIONS))
    terminalreporter.write_line(f"Postgres tested: {tested}; supported, but no binaries here: {missing or 'none'}")
    for name, is_available in optional_tests().items():
        terminalreporter.write_line(f"{'Tested' if is_available else 'Not tested'}: {name}")


def optional_tests() -> dict[str, bool]:
    """Returns which optional tests can run here.

    Imports late: tests of one package do not need them."""
    from tests.citus.conftest import CITUS_DSN
    from tests.faults.failover import conftest as failover
    from tests.faults.failover import disk
    from tests.faults.postgres.conftest import PGBOUNCER
    from tests.upgrades.rollout import releases, sandbox

    return {
        "power cut, full disk (they need root, loop devices and mkfs.ext4)": disk.IS_AVAILABLE,
        "failover by Patroni (make patroni)": failover.WITH_PATRONI,
        "PgBouncer (if there is one on the PATH)": bool(PGBOUNCER),
        "Citus (CITUS_DSN: an empty database on the coordinator of a cluster)": bool(CITUS_DSN),
        f"the previous release ({releases.PREVIOUS}, if its commit is in this clone) beside this one": (
            releases.IS_AVAILABLE
        ),
        "a read-only file system without privileges (if a mount namespace can be created)": sandbox.IS_AVAILABLE,
    }


@pytest.fixture(scope="session")
def dsn(postgres: str, loop: Loop, pytestconfig: pytest.Config) -> str:
    return create_database(postgres, loop, "longshore", partitioned=pytestconfig.getoption("--partitioned"))


@pytest.fixture(scope="session")
def database(dsn: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(dsn, loop)
    yield database
    database.close()


@pytest.fixture(scope="session")
def broker(dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
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
def api(broker: RunningBroker, db: TestDatabase, queue: str) -> Api:
    """A client of the broker's API, with an empty database and this test's queue as the default."""
    return Api(broker.http, queue)


@pytest.fixture
def http(broker: RunningBroker, db: TestDatabase) -> httpx.Client:
    """A plain HTTP client, for requests that the API rejects."""
    return broker.http


@pytest.fixture
def broker_services(dsn: str, loop: Loop, db: TestDatabase) -> Iterator[Broker]:
    """The services of a broker without HTTP server and background services.

    Tests call them directly, to test behaviour that no request triggers."""
    broker_services = build_broker(TEST_SETTINGS, dsn)
    loop.run(broker_services.infra.db.open())
    loop.run(broker_services.infra.clock.refresh(broker_services.infra.db))
    yield broker_services
    loop.run(broker_services.infra.db.close())


@pytest.fixture
def background() -> Iterator[Background]:
    """Runs calls in threads while the test continues."""
    with background_calls() as calls:
        yield calls


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    return wait_until


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Waits until the condition is true, and returns its value.

    The timeout measures nothing: it only ends a test that would hang."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        time.sleep(0.01)
    return value
