"""Servers that a test may break: each gets copies of one migrated cluster."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import migrations
from tests.database import Loop
from tests.failover.cluster import ASYNCHRONOUS, SYNCHRONOUS, Pair, start_pair
from tests.failover.disk import IS_AVAILABLE
from tests.failover.server import Account, Server

WITH_PATRONI = "PATRONI" in os.environ
collect_ignore = ([] if IS_AVAILABLE else ["test_power_cut.py", "test_full_disk.py"]) + (
    [] if WITH_PATRONI else ["test_patroni.py"]
)


@pytest.fixture(scope="package")
def account() -> Iterator[Account]:
    """In a folder with a short name: the path of a socket may have a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="lsf-") as folder:
        yield Account(Path(folder))


@pytest.fixture(scope="package")
def template(account: Account) -> Server:
    """Migrated and stopped, to be copied."""
    server = Server(account, "template", account.make_folder(account.folder / "t"))
    server.create()
    server.start({})
    migrations.upgrade(server.dsn)
    server.stop()
    return server


@pytest.fixture
def synchronous(template: Server, loop: Loop) -> Iterator[Pair]:
    """A commit is answered when the standby has it."""
    with start_pair(template, loop, SYNCHRONOUS) as made:
        yield made


@pytest.fixture
def asynchronous(template: Server, loop: Loop) -> Iterator[Pair]:
    """A commit is answered when the primary has it."""
    with start_pair(template, loop, ASYNCHRONOUS) as made:
        yield made
