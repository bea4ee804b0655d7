"""One look for all sweeps: those that have something to do are nudged, the others are left alone."""

import asyncio
from functools import partial

import pytest

from app.broker import Broker, build_broker
from app.errors import DatabaseUnavailable
from app.maintenance.chores import JobScheduler, LeaseRescuer
from app.maintenance.due_check import DueCheck
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
    "a rest that is over": f"INSERT INTO rests (lane, group_key, until) SELECT lane, 'g', {PAST} FROM jobs LIMIT 1",
}


class Looker:
    """Makes its round, and notes whom it has nudged."""

    def __init__(self, broker_services: Broker) -> None:
        self.woken: list[str] = []
        self.expiry = LeaseRescuer(broker_services.infra, broker_services.settlements)
        self._broker_services = broker_services
        self._nudges = {name: partial(self.woken.append, name) for name in SWEEPS}

    async def look(self) -> None:
        infra = self._broker_services.infra
        await infra.db.open()
        try:
            await infra.clock.refresh(infra.db)
            promotion = JobScheduler(infra, self._broker_services.queues, self._broker_services.signals)
            await DueCheck(
                infra, self.expiry, promotion, self._broker_services.periodic_enqueuer, self._nudges
            ).run_once()
        finally:
            await infra.db.close()


@pytest.fixture
def drowsy_house(drowsy_db: TestDatabase, loop: Loop) -> Broker:
    return build_broker(QUICK, drowsy_db.dsn)


@pytest.mark.parametrize("sweep", AFTERWARDS)
def test_only_who_has_something_to_do_is_nudged(
    drowsy: Api, drowsy_db: TestDatabase, drowsy_house: Broker, loop: Loop, sweep: str
) -> None:
    """Beside jobs, leases and schedules whose time has not come."""
    drowsy.enqueue_many(2)
    drowsy.claim_one()
    drowsy.enqueue(delay_seconds=3600)
    drowsy.http.put(
        f"/schedules/{drowsy.queue}", json={"every_seconds": 3600, "job": {"job_type": "t"}}
    ).raise_for_status()
    drowsy_db.execute(AFTERWARDS[sweep])

    looker = Looker(drowsy_house)
    loop.run(looker.look())
    assert looker.woken == {"nothing": [], "a rest that is over": ["turns"]}.get(sweep, [sweep])


def test_what_was_looked_through_is_not_read_again(drowsy_house: Broker, loop: Loop) -> None:
    looker = Looker(drowsy_house)
    before = looker.expiry.after
    loop.run(looker.look())
    assert looker.expiry.after > before


def test_who_cannot_look_sweeps_unasked(drowsy_db: TestDatabase, drowsy_house: Broker, loop: Loop) -> None:
    """A lock on one table holds up no other sweep."""
    looker = Looker(drowsy_house)
    with drowsy_db.uncommitted("LOCK TABLE schedules"), pytest.raises(DatabaseUnavailable):
        loop.run(looker.look())
    assert set(looker.woken) == {*SWEEPS}


def test_what_is_due_in_a_moment_needs_no_other_round(
    drowsy: Api, drowsy_db: TestDatabase, drowsy_house: Broker, loop: Loop
) -> None:
    drowsy.enqueue(delay_seconds=3600)
    drowsy_db.execute("UPDATE jobs SET run_at = now() + interval '20 milliseconds' WHERE state = 'scheduled'")

    async def look() -> None:
        infra = drowsy_house.infra
        await infra.db.open()
        await infra.clock.refresh(infra.db)
        promotion, came = JobScheduler(infra, drowsy_house.queues, drowsy_house.signals), asyncio.Event()
        promotion.wake = came.set
        wakes = dict.fromkeys(SWEEPS, came.set)
        await DueCheck(
            infra, LeaseRescuer(infra, drowsy_house.settlements), promotion, drowsy_house.periodic_enqueuer, wakes
        ).run_once()
        async with asyncio.timeout(20):
            await came.wait()
        await infra.db.close()

    loop.run(look())
