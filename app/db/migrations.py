"""The schema, through Alembic: to head, what head is, and what a revision file needs."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from asyncpg import LockNotAvailableError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import SchemaItem

from alembic import command, op
from app.db.primary import PrimaryConnector

if TYPE_CHECKING:
    from app.db.pool import Executor

ROOT = Path(__file__).resolve().parents[2]
MIGRATOR_LOCK = 0x6C6F6E67  # "long"
LOCK_TIMEOUT = "200ms"
TRIES = 50  # each gives up after lock_timeout, so that claims are never held up for longer than that


def config(dsn: str) -> Config:
    made = Config(ROOT / "alembic.ini")
    made.attributes["dsn"] = dsn
    return made


class UnknownRevision(Exception):
    """A newer release migrated the database, so this release has no migration from its revision."""


class Upgraded(NamedTuple):
    """Revisions before and after the upgrade. `before` is None if the database had no schema."""

    before: str | None
    after: str


def upgrade(dsn: str) -> Upgraded:
    """Migrates to the newest revision. `alembic/env.py` stores the revision that it found, after it has acquired the migration lock."""
    settings = config(dsn)
    try:
        _with_retries(lambda: command.upgrade(settings, "head"))
    except CommandError as error:
        found = settings.attributes.get("revision")
        if found is None or found in older_than_head() | {head()}:
            raise
        raise UnknownRevision(
            f"the schema is at {found}, which this release does not know: it needs {head()}; run a newer release"
        ) from error
    return Upgraded(settings.attributes["revision"], head())


def downgrade(dsn: str, revision: str) -> None:
    _with_retries(lambda: command.downgrade(config(dsn), revision))


@cache
def head() -> str:
    found = ScriptDirectory.from_config(config("")).get_current_head()
    assert found is not None, "there is at least one revision"
    return found


async def current_revision(db: "Executor") -> str | None:
    """The revision of the schema; None if there is no schema."""
    migrated = await db.value("SELECT to_regclass('alembic_version') IS NOT NULL")
    revision: str | None = await db.value("SELECT version_num FROM alembic_version") if migrated else None
    return revision


@cache
def older_than_head() -> frozenset[str | None]:
    """Revisions with which this release cannot work; None stands for no schema at all."""
    return frozenset(
        {None, *(script.revision for script in ScriptDirectory.from_config(config("")).walk_revisions())} - {head()}
    )


def _with_retries(run: Callable[[], None]) -> None:
    for left in reversed(range(TRIES)):
        try:
            run()
            return
        except (DBAPIError, LockNotAvailableError) as error:  # the second from `run_file`, past SQLAlchemy
            if "LockNotAvailable" not in repr(error) or not left:
                raise
            time.sleep(0.2)


def run_file(revision_file: str, direction: str) -> None:
    """Runs `0001_x.up.sql` beside `0001_x.py`. Through the driver's own `execute`: SQLAlchemy's cursor prepares, and a prepared
    statement cannot be several."""
    script = Path(revision_file).with_suffix(f".{direction}.sql").read_text()
    bind = op.get_bind()
    bind.execute(text("SELECT 1"))  # opens the transaction, which the driver's own call would not
    adapted: Any = bind.connection.dbapi_connection
    adapted.run_async(lambda driver: driver.execute(script))


def run_file_one_by_one(revision_file: str, direction: str) -> None:
    """For CREATE INDEX CONCURRENTLY, which no transaction may hold; no statement of such a file has a semicolon inside."""
    script = Path(revision_file).with_suffix(f".{direction}.sql").read_text()
    with op.get_context().autocommit_block():
        # It waits for older transactions, which holds up nobody but other migrations: giving up would throw away the whole build.
        op.get_bind().exec_driver_sql("SET lock_timeout = 0")
        for statement in filter(str.strip, script.split(";")):
            op.get_bind().exec_driver_sql(statement)
        op.get_bind().exec_driver_sql(f"SET lock_timeout = '{LOCK_TIMEOUT}'")


def is_ours(item: SchemaItem, name: str | None, kind: str, _reflected: bool, _other: SchemaItem | None) -> bool:
    """Partitions come and go with time; they are no part of the model."""
    return not (kind == "table" and (name or "").startswith("finished_jobs_"))


def engine(dsn: str) -> AsyncEngine:
    """SQLAlchemy on connections that we make: it spells some options of a DSN differently, and knows no list of hosts. A standby is
    refused, and so is an old primary."""
    return create_async_engine("postgresql+asyncpg://", async_creator=PrimaryConnector(dsn).connect, poolclass=NullPool)
