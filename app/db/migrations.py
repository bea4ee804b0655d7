"""Runs the migrations with Alembic. Contains helpers for the revision files in alembic/versions."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import SchemaItem

from alembic import command, op
from app.db.primary import PrimaryConnector
from app.db.sql_scripts import split_script

if TYPE_CHECKING:
    from app.db.pool import Executor

ROOT = Path(__file__).resolve().parents[2]
MIGRATION_LOCK_KEY = 0x6C6F6E67  # key of an advisory lock: "long" in ASCII
LOCK_TIMEOUT = "200ms"
LOCK_NOT_AVAILABLE = "55P03"  # error code
# A migration is tried this often. Each try waits at most LOCK_TIMEOUT for a lock, so that no claim
# waits longer for a migration.
TRIES = 50


def config(dsn: str) -> Config:
    """Returns Alembic's configuration, with the DSN for `alembic/env.py`."""
    alembic_config = Config(ROOT / "alembic.ini")
    alembic_config.attributes["dsn"] = dsn
    return alembic_config


class UnknownRevision(Exception):
    """A newer release migrated the database, to a revision that this release does not know."""


class UpgradeResult(NamedTuple):
    """The revisions before and after an upgrade. `before` is None if the database had no schema."""

    before: str | None
    after: str


def upgrade(dsn: str) -> UpgradeResult:
    """Migrates the database to the newest revision of this release.

    `alembic/env.py` acquires the migration lock, reads the old revision, and stores it in the
    attributes of the Alembic configuration.
    """
    alembic_config = config(dsn)
    try:
        _with_retries(lambda: command.upgrade(alembic_config, "head"))
    except CommandError as error:
        found = alembic_config.attributes.get("revision")
        if found is None or found in older_than_head() | {head()}:
            raise
        raise UnknownRevision(
            f"the schema is at {found}, which this release does not know: this release needs {head()}; "
            "run a newer release"
        ) from error
    return UpgradeResult(alembic_config.attributes["revision"], head())


def downgrade(dsn: str, revision: str) -> None:
    _with_retries(lambda: command.downgrade(config(dsn), revision))


@cache
def head() -> str:
    """Returns the newest revision of this release."""
    revision = ScriptDirectory.from_config(config("")).get_current_head()
    assert revision is not None, "there is at least one revision"
    return revision


async def current_revision(db: "Executor") -> str | None:
    """Reads the revision of the schema. Returns None if there is no schema."""
    migrated = await db.value("SELECT to_regclass('alembic_version') IS NOT NULL")
    revision: str | None = await db.value("SELECT version_num FROM alembic_version") if migrated else None
    return revision


@cache
def older_than_head() -> frozenset[str | None]:
    """Returns all revisions before the newest. A database with one of these revisions must be
    upgraded first. None stands for a database without a schema."""
    return frozenset(
        {None, *(script.revision for script in ScriptDirectory.from_config(config("")).walk_revisions())} - {head()}
    )


def _with_retries(run: Callable[[], None]) -> None:
    """Runs a migration. If it cannot acquire a lock, tries again, up to TRIES times in all."""
    for tries_left in reversed(range(TRIES)):
        try:
            run()
            return
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE or not tries_left:
                raise
            time.sleep(0.2)


def run_files(revision_file: str, direction: str) -> None:
    """Runs the SQL of a revision, for example `0001_x.up.sql` beside `0001_x.py`. A long revision
    has several files, which run in the order of their names: `0001_x.1_tables.up.sql`,
    `0001_x.2_functions.up.sql`.

    Sends the statements one by one, because Citus rejects most changes of a distributed table that
    are sent together with other statements.
    """
    for statement in _statements(revision_file, direction):
        op.get_bind().exec_driver_sql(statement)


def run_files_in_autocommit(revision_file: str, direction: str) -> None:
    """Like `run_files`, but in no transaction, for CREATE INDEX CONCURRENTLY, which cannot run in
    one.

    The file must drop every index first (DROP INDEX CONCURRENTLY IF EXISTS): an interrupted CREATE
    INDEX CONCURRENTLY leaves an invalid index behind.
    """
    with op.get_context().autocommit_block():
        # CREATE INDEX CONCURRENTLY waits for older transactions. The wait blocks only other
        # migrations, and a timeout would discard the whole index.
        op.get_bind().exec_driver_sql("SET lock_timeout = 0")
        for statement in _statements(revision_file, direction):
            op.get_bind().exec_driver_sql(statement)
        op.get_bind().exec_driver_sql(f"SET lock_timeout = '{LOCK_TIMEOUT}'")


def _statements(revision_file: str, direction: str) -> list[str]:
    revision = Path(revision_file)
    files = sorted(revision.parent.glob(f"{revision.stem}.*{direction}.sql"))
    assert files, f"there is no {revision.stem}.{direction}.sql"
    return [statement for file in files for statement in split_script(file.read_text())]


def include_object(item: SchemaItem, name: str | None, kind: str, _reflected: bool, _other: SchemaItem | None) -> bool:
    """Returns False for partitions, so that Alembic does not compare them with the models. The
    models do not contain partitions, because the broker creates and drops them over time."""
    return not (kind == "table" and (name or "").startswith("finished_jobs_"))


def engine(dsn: str) -> AsyncEngine:
    """Creates an SQLAlchemy engine that opens its connections with PrimaryConnector, and so uses no
    standby and no superseded primary. SQLAlchemy does not read the DSN, because it has other names
    for some options and supports no list of hosts."""
    return create_async_engine("postgresql+asyncpg://", async_creator=PrimaryConnector(dsn).connect, poolclass=NullPool)
