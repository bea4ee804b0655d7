"""How migrations run: on asyncpg, one migrator at a time, never waiting long for a lock that claims need."""

import asyncio
import time

from sqlalchemy import Connection, text

from alembic import context
from app.db.migrations import LOCK_TIMEOUT, MIGRATOR_LOCK, engine, is_ours
from app.db.tables import metadata


def migrate(connection: Connection) -> None:
    # Parameters of the session and not of the transaction, so that a revision with CREATE INDEX CONCURRENTLY has them too.
    for name, value in (("lock_timeout", LOCK_TIMEOUT), ("statement_timeout", "0"), ("timezone", "UTC")):
        connection.execute(text(f"SET {name} = '{value}'"))
    connection.execute(text("SET citus.multi_shard_modify_mode = 'sequential'"))
    # A session lock and not one of the transaction: revisions commit one by one.
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": MIGRATOR_LOCK}):
        connection.commit()  # an open transaction would hold up the other's CREATE INDEX CONCURRENTLY
        time.sleep(0.1)
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        include_object=is_ours,
        compare_type=True,
        compare_server_default=False,
    )
    context.config.attributes.setdefault("revision", context.get_context().get_current_revision())
    connection.commit()  # Alembic commits revision by revision only if it begins the transactions
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()


async def connect() -> None:
    database = engine(context.config.attributes["dsn"])
    async with database.connect() as connection:
        await connection.run_sync(migrate)
    await database.dispose()


asyncio.run(connect())
