"""A database on a Citus cluster, with distributed tables. CITUS_DSN names an empty database on the
coordinator, with the extension and all nodes."""

import os
from collections.abc import Iterator

import pytest

from app.db import migrations
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.cli.command import run
from tests.database import Loop, TestDatabase

CITUS_DSN = os.environ.get("CITUS_DSN", "")
collect_ignore = [] if CITUS_DSN else ["test_distribute.py", "test_statements.py"]


@pytest.fixture(scope="package")
def cluster(loop: Loop) -> Iterator[TestDatabase]:
    """A migrated database, distributed by the command."""
    migrations.upgrade(CITUS_DSN)
    distributed = run("distribute", DATABASE_URL=CITUS_DSN)
    assert distributed.returncode == 0, distributed.stdout + distributed.stderr
    database = TestDatabase(CITUS_DSN, loop)
    yield database
    database.close()


@pytest.fixture(scope="package")
def cluster_broker(cluster: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, cluster.dsn) as broker:
        yield broker
