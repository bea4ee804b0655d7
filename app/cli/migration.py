"""Migrates the database for commands: `migrate`, and those that create the embedded Postgres."""

from typing import TYPE_CHECKING

from app.cli.support import FAILED, fail

if TYPE_CHECKING:
    from app.db.migrations import UpgradeResult
    from app.settings import Settings


def direct_dsn(settings: "Settings", dsn: str) -> str:
    """Returns the DSN for migrations, which bypasses a connection pooler: a migration holds a
    session-level lock, and a pooler in transaction mode does not support such locks."""
    return settings.listen_url.get_secret_value() if settings.listen_url else dsn


def upgrade(settings: "Settings", dsn: str) -> "UpgradeResult":
    """Migrates the database, and stores the range of queue ids in it if the settings have one."""
    import asyncio

    from app.db import migrations
    from app.db.failure_causes import describe

    try:
        upgraded = migrations.upgrade(dsn)
    except OSError as error:  # asyncpg raises the socket's own error
        fail(describe(error, dsn), FAILED)
    except migrations.UnknownRevision as error:
        fail(str(error), FAILED)
    if settings.queue_id_range is not None:
        asyncio.run(store_queue_ids(dsn, *settings.queue_id_range))
    return upgraded


async def store_queue_ids(dsn: str, first: int, last: int) -> None:
    """Stores the ids that new queues get. Existing queues keep their ids."""
    from app.db.primary import single_connection

    async with single_connection(dsn) as connection:
        await connection.execute("UPDATE queue_id_range SET first_id = $1, last_id = $2", first, last)
