"""Servers that a test may set as it likes, stop and kill: each is a copy of one migrated cluster."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.db import migrations
from app.db.pool import Database
from app.metrics import Metrics
from app.settings import Settings
from tests.conftest import TEST_SETTINGS
from tests.database import Loop
from tests.failover.server import Account, Server

_numbers = itertools.count(1)
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
collect_ignore = [] if PGBOUNCER else ["test_pgbouncer.py"]


StartServer = Callable[..., Server]


@pytest.fixture(scope="package")
def migrated() -> Iterator[Server]:
    """Stopped, to be copied. In a folder with a short name: the path of a socket may have a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="lsd-") as folder:
        account = Account(Path(folder))
        server = Server(account, "template", account.make_folder(account.folder / "t"))
        server.create()
        server.start({})
        migrations.upgrade(server.dsn)
        server.stop()
        yield server


@pytest.fixture
def start(migrated: Server) -> Iterator[StartServer]:
    """A server of the test's own, with these settings."""
    with ExitStack() as stack:

        def started(*, standby: bool = False, **options: str) -> Server:
            server = migrated.copy(f"d{next(_numbers)}")
            if standby:
                server.mark("standby.signal")
            stack.callback(shutil.rmtree, server.data)
            stack.callback(server.stop)
            server.start(options)
            return server

        yield started


@contextmanager
def open_database(dsn: str, loop: Loop, **settings: object) -> Iterator[Database]:
    """The floor alone: a pool with its watchdog, and no broker on it."""
    database = Database(dsn, settings_with(**settings), Metrics())
    loop.run(database.open())
    try:
        yield database
    finally:
        loop.run(database.close())


def settings_with(**settings: object) -> Settings:
    return TEST_SETTINGS.model_copy(update=settings)
