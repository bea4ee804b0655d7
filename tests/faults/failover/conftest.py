"""Postgres servers that a test may break. Each test gets copies of one migrated cluster."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import migrations
from tests.database import Loop
from tests.faults.failover.cluster import ASYNCHRONOUS, SYNCHRONOUS, Pair, start_pair
from tests.faults.failover.disk import IS_AVAILABLE
from tests.faults.failover.server import Account, Server

WITH_PATRONI = "PATRONI" in os.environ
collect_ignore = ([] if IS_AVAILABLE else ["test_power_cut.py", "test_full_disk.py"]) + (
    [] if WITH_PATRONI else ["test_patroni.py"]
)


@pytest.fixture(scope="package")
def account() -> Iterator[Account]:
    """Its folder has a short path: the path of a socket may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="lsf-") as folder:
        yield Account(Path(folder))


@pytest.fixture(scope="package")
def template(account: Account) -> Server:
    """A migrated server, stopped, to be copied."""
    server = Server(account, "template", account.make_folder(account.folder / "t"))
    server.create()
    server.start({})
    migrations.upgrade(server.dsn)
    server.stop()
    return server


@pytest.fixture
def synchronous(template: Server, loop: Loop) -> Iterator[Pair]:
    """A primary that acknowledges a commit when the standby has it."""
    with start_pair(template, loop, SYNCHRONOUS) as servers:
        yield servers


@pytest.fixture
def asynchronous(template: Server, loop: Loop) -> Iterator[Pair]:
    """A primary that acknowledges a commit when it has it itself."""
    with start_pair(template, loop, ASYNCHRONOUS) as servers:
        yield servers
