"""The Postgres of a benchmark: durable, with usual server settings.

Longshore and the peers share it, with a database each.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import asyncpg

from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from bench.install import temporary_folder
from bench.machine import parent_of

OPTIONS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "max_connections": "200",
}


@contextmanager
def temporary_postgres() -> Iterator[str]:
    with temporary_folder() as folder, EmbeddedPostgres(folder / "postgres", options=OPTIONS) as dsn:
        yield dsn


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def migrate(dsn: str) -> None:
    """Migrates in this process, which has imported everything for it."""
    await asyncio.to_thread(migrations.upgrade, dsn)


@asynccontextmanager
async def temporary_database(dsn: str, name: str) -> AsyncIterator[str]:
    """Creates an empty database, and drops it afterwards."""
    async with connected(dsn) as admin:
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await admin.execute(f'CREATE DATABASE "{name}"')
        try:
            yield urlsplit(dsn)._replace(path=f"/{name}").geturl()
        finally:
            await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


async def checkpoint(dsn: str) -> None:
    """Writes a checkpoint, so that none falls into the measurement and every contender starts with the same log."""
    async with connected(dsn) as admin:
        await admin.execute("CHECKPOINT")


async def postmaster(dsn: str) -> int:
    """The parent of all processes of this server."""
    async with connected(dsn) as connection:
        return parent_of(await connection.fetchval("SELECT pg_backend_pid()"))


async def version(dsn: str) -> str:
    async with connected(dsn) as connection:
        return f"Postgres {await connection.fetchval('SHOW server_version')}"
