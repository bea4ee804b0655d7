"""Postgres servers that a test may configure, stop and kill.

Each is a copy of one migrated cluster.
"""

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
from tests.faults.failover.server import Account, Server

_copies = itertools.count(1)
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
collect_ignore = [] if PGBOUNCER else ["test_pgbouncer.py"]


StartServer = Callable[..., Server]


@pytest.fixture(scope="package")
def template() -> Iterator[Server]:
    """A stopped server, to be copied.

    Its folder has a short path: the path of a socket may have about a hundred characters.
    """
    with tempfile.TemporaryDirectory(prefix="lsd-") as folder:
        account = Account(Path(folder))
        server = Server(account, "template", account.make_folder(account.folder / "t"))
        server.create()
        server.start({})
        migrations.upgrade(server.dsn)
        server.stop()
        yield server


@pytest.fixture
def start(template: Server) -> Iterator[StartServer]:
    """Starts a server with these options, for one test."""
    with ExitStack() as stack:

        def start_copy(*, standby: bool = False, **options: str) -> Server:
            server = template.copy(f"d{next(_copies)}")
            if standby:
                server.create_signal_file("standby.signal")
            stack.callback(shutil.rmtree, server.data)
            stack.callback(server.stop)
            server.start(options)
            return server

        yield start_copy


@contextmanager
def open_database(dsn: str, loop: Loop, **settings: object) -> Iterator[Database]:
    """A pool with its watchdog, without a broker."""
    database = Database(dsn, settings_with(**settings), Metrics())
    loop.run(database.open())
    try:
        yield database
    finally:
        loop.run(database.close())


def settings_with(**settings: object) -> Settings:
    return TEST_SETTINGS.model_copy(update=settings)
