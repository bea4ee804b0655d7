"""The estimate of the database's clock."""

import asyncio
from datetime import datetime, timedelta

from app.db.clock import DatabaseClock
from app.db.pool import Database
from app.metrics import Metrics
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase

BUSY_SECONDS = 1.0


def test_wait_for_a_connection_does_not_move_the_clock(db: TestDatabase, loop: Loop) -> None:
    """With the wait inside the measured round trip, the clock would be ahead by half of it."""
    error = loop.run(error_after_waiting_for_a_connection(db.dsn))
    assert abs(error) < timedelta(seconds=BUSY_SECONDS / 4)


async def error_after_waiting_for_a_connection(dsn: str) -> timedelta:
    pool = Database(dsn, TEST_SETTINGS.model_copy(update={"pool_size": 1, "pool_reserved": 0}), Metrics())
    await pool.open()
    try:
        clock = DatabaseClock()
        async with pool.autocommit():
            refresh = asyncio.create_task(clock.refresh(pool))
            await asyncio.sleep(BUSY_SECONDS)
        await refresh
        return min([await error_of(clock, pool) for _ in range(10)], key=abs)
    finally:
        await pool.close()


async def error_of(clock: DatabaseClock, pool: Database) -> timedelta:
    before = clock.now()
    theirs: datetime = await pool.value("SELECT clock_timestamp()")
    return before + (clock.now() - before) / 2 - theirs
