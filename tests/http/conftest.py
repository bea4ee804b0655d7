"""Brokers with short timeouts or low limits, and raw connections to them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.http.raw_connection import RawConnection

# One second, because on a busy machine a test may need most of it between connecting and sending.
SHORT_TIMEOUTS = {"header_seconds": 1.0, "body_seconds": 1.0, "keep_alive_seconds": 1.0, "body_bytes_per_second": 1000}
LOW_LIMITS = {
    "max_connections": 10,
    "max_held_bytes": 1,
    "max_batch_bytes": 1024 * 1024,
    "header_seconds": 60.0,
    "body_seconds": 60.0,
}

Connect = Callable[[], RawConnection]


@contextmanager
def connections(base: str) -> Iterator[Connect]:
    """Opens any number of connections, and closes all of them at the end."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(RawConnection(base)))


@pytest.fixture
def connect(broker: RunningBroker) -> Iterator[Connect]:
    """Connects to the shared broker, which has the default timeouts."""
    with connections(broker.base) as connect:
        yield connect


@pytest.fixture(scope="package")
def short_timeout_broker(dsn: str) -> Iterator[RunningBroker]:
    """A broker whose timeouts are shorter than any poll in these tests."""
    with threaded_broker(TEST_SETTINGS.model_copy(update=SHORT_TIMEOUTS), dsn) as broker:
        yield broker


@pytest.fixture
def connect_short_timeout(short_timeout_broker: RunningBroker) -> Iterator[Connect]:
    with connections(short_timeout_broker.base) as connect:
        yield connect


@pytest.fixture
def low_limit_broker(dsn: str) -> Iterator[RunningBroker]:
    """A broker that accepts ten connections and buffers 1 MiB of request bodies."""
    with threaded_broker(TEST_SETTINGS.model_copy(update=LOW_LIMITS), dsn) as broker:
        yield broker
