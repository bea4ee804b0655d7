"""One look for all sweeps: those that have something to do are nudged, the others are left alone."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from app.house import House, build
from app.maintenance.chores import Expiry, Promotion
from app.maintenance.rounds import Rounds
from tests.api import Api
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase

SWEEPS = ("promotion", "lateness", "expiry", "firing", "releasing", "turns")
PAST = "now() - interval '1 minute'"
AFTERWARDS = {
    "nothing": "SELECT 1",
    "promotion": f"UPDATE jobs SET state = 'scheduled', run_at = {PAST} WHERE state = 'ready'",
    "lateness": f"UPDATE jobs SET expires_at = {PAST} WHERE state = 'ready'",
    "expiry": f"UPDATE jobs SET lease_expires_at = {PAST} WHERE state = 'running'",
    "firing": f"UPDATE schedules SET next_run_at = {PAST}",
    "releasing": "INSERT INTO endings (lane, id, state) SELECT lane, id, 'completed' FROM jobs LIMIT 1",
    "turns": "UPDATE jobs SET state = 'parked' WHERE state = 'ready'",
}


async def nudged_by(house: House) -> list[str]:
    nudged: list[str] = []
    nudges: dict[str, Callable[[], None]] = {name: lambda name=name: nudged.append(name) for name in SWEEPS}  # type: ignore[misc]
    await house.floor.clock.refresh(house.floor.db)
    expiry, promotion = Expiry(house.floor, house.settling), Promotion(house.floor, house.queues, house.signals)
    await Rounds(house.floor, expiry, promotion, house.firing, nudges).run_once()
    assert expiry.after > house.floor.now() - timedelta(hours=1) or "expiry" in nudged, "what was looked through is not read again"
    return nudged


@pytest.fixture
def drowsy_house(drowsy_db: TestDatabase, loop: Loop) -> House:
    return build(QUICK, drowsy_db.dsn)


@pytest.mark.parametrize("sweep", AFTERWARDS)
def test_only_who_has_something_to_do_is_nudged(drowsy: Api, drowsy_db: TestDatabase, drowsy_house: House, loop: Loop, sweep: str) -> None:
    """Beside jobs, leases and schedules whose time has not come."""
    drowsy.enqueue_many(2)
    drowsy.claim_one()
    drowsy.enqueue(delay_seconds=3600)
    drowsy.http.put(f"/schedules/{drowsy.queue}", json={"every_seconds": 3600, "job": {"job_type": "t"}}).raise_for_status()
    drowsy_db.execute(AFTERWARDS[sweep])

    async def look() -> list[str]:
        await drowsy_house.floor.db.open()
        try:
            return await nudged_by(drowsy_house)
        finally:
            await drowsy_house.floor.db.close()

    assert loop.run(look()) == ([] if sweep == "nothing" else [sweep])


def test_what_is_due_in_a_moment_needs_no_other_round(drowsy: Api, drowsy_db: TestDatabase, drowsy_house: House, loop: Loop) -> None:
    drowsy.enqueue(delay_seconds=3600)
    drowsy_db.execute("UPDATE jobs SET run_at = now() + interval '20 milliseconds' WHERE state = 'scheduled'")

    async def look() -> None:
        floor = drowsy_house.floor
        await floor.db.open()
        await floor.clock.refresh(floor.db)
        promotion, came = Promotion(floor, drowsy_house.queues, drowsy_house.signals), asyncio.Event()
        promotion.nudge = came.set
        nudges = dict.fromkeys(SWEEPS, came.set)
        await Rounds(floor, Expiry(floor, drowsy_house.settling), promotion, drowsy_house.firing, nudges).run_once()
        async with asyncio.timeout(20):
            await came.wait()
        await floor.db.close()

    loop.run(look())
