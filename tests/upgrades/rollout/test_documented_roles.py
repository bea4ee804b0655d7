"""The database roles of docs/operations/deploying.md, created as that page says."""

import re
from collections.abc import Iterator

import pytest

from app.db import migrations
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.docs.pages import code
from tests.database import Loop, TestDatabase, in_database
from tests.upgrades.rollout.roles import as_role

PAGE = "docs/operations/deploying.md"
# Roles belong to the server, which other tests share.
NAMES = {"longshore_owner": "documented_owner", "longshore_api": "documented_api", "longshore": "documented"}
ROLE_EXISTS = "SELECT true FROM pg_roles WHERE rolname = 'longshore_broker'"


def statements() -> list[str]:
    """The statements of the page, with the names of this test."""
    (block,) = code(PAGE, "sql")
    sql = re.sub(r"--[^\n]*", "", block)
    renamed = re.sub(r"\b(longshore_owner|longshore_api|longshore)\b", lambda name: NAMES[name[0]], sql)
    return [statement.strip() for statement in renamed.split(";") if statement.strip()]


@pytest.fixture
def server(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A session of the server's administrator."""
    database = TestDatabase(postgres, loop)
    yield database
    database.execute("DROP DATABASE IF EXISTS documented WITH (FORCE)")
    database.execute("DROP ROLE IF EXISTS documented_api, documented_owner")
    database.close()


def test_documented_roles_migrate_and_serve(server: TestDatabase) -> None:
    for statement in statements():
        if not (statement.startswith("CREATE ROLE longshore_broker") and server.value(ROLE_EXISTS)):
            server.execute(statement)
    dsn = in_database(server.dsn, "documented")
    migrations.upgrade(as_role(dsn, "documented_owner"))
    with threaded_broker(TEST_SETTINGS, as_role(dsn, "documented_api")) as broker:
        api = Api(broker.http, "documented")
        api.enqueue()
        assert api.complete(api.claim_one())["status"] == "settled"
