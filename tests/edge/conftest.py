"""Brokers with little patience or little room, each for the tests of a file; and sockets to them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK
from tests.edge.raw import Raw

# A second: on a busy machine a test may need most of it between connecting and sending.
HASTY = {"header_seconds": 1.0, "body_seconds": 1.0, "keep_alive_seconds": 1.0, "body_bytes_per_second": 1000}
NARROW = {
    "max_connections": 10,
    "max_held_bytes": 1,
    "max_batch_bytes": 1024 * 1024,
    "header_seconds": 60.0,
    "body_seconds": 60.0,
}

Connect = Callable[[], Raw]


@contextmanager
def connections(base: str) -> Iterator[Connect]:
    """As many as one likes, none left open."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(Raw(base)))


@pytest.fixture
def connect(broker: RunningBroker) -> Iterator[Connect]:
    """To the broker that all tests share, with its deadlines as they are."""
    with connections(broker.base) as connect:
        yield connect


@pytest.fixture(scope="package")
def hasty_broker(dsn: str) -> Iterator[RunningBroker]:
    """Its deadlines are shorter than any poll in these tests."""
    with threaded_broker(QUICK.model_copy(update=HASTY), dsn) as broker:
        yield broker


@pytest.fixture
def hasty(hasty_broker: RunningBroker) -> Iterator[Connect]:
    with connections(hasty_broker.base) as connect:
        yield connect


@pytest.fixture
def narrow_broker(dsn: str) -> Iterator[RunningBroker]:
    """Ten connections, and 1 MiB for bodies."""
    with threaded_broker(QUICK.model_copy(update=NARROW), dsn) as broker:
        yield broker
