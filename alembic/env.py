"""Runs the migrations with asyncpg.

Only one process migrates at a time. It never waits long for a table lock, because claims would have
to wait behind the migration.
"""

import asyncio
import time

from sqlalchemy import Connection, text

from alembic import context
from app.db.migrations import LOCK_TIMEOUT, MIGRATION_LOCK_KEY, engine, include_object
from app.db.tables import metadata


def migrate(connection: Connection) -> None:
    # These settings apply to the session and not to a transaction, so that they also apply to a
    # revision with CREATE INDEX CONCURRENTLY.
    for name, value in (("lock_timeout", LOCK_TIMEOUT), ("statement_timeout", "0"), ("timezone", "UTC")):
        connection.execute(text(f"SET {name} = '{value}'"))
    connection.execute(text("SET citus.multi_shard_modify_mode = 'sequential'"))
    # The migration lock belongs to the session and not to a transaction, because every revision
    # commits.
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": MIGRATION_LOCK_KEY}):
        # An open transaction would block the other migrator's CREATE INDEX CONCURRENTLY.
        connection.commit()
        time.sleep(0.1)
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        include_object=include_object,
        compare_type=True,
        compare_server_default=False,
    )
    context.config.attributes.setdefault("revision", context.get_context().get_current_revision())
    connection.commit()  # Alembic commits each revision only if it begins the transactions itself
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()


async def connect() -> None:
    database = engine(context.config.attributes["dsn"])
    async with database.connect() as connection:
        await connection.run_sync(migrate)
    await database.dispose()


asyncio.run(connect())
