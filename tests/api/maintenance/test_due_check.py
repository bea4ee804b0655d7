"""The due check: services that have work are woken, the others are left alone."""

import asyncio
from functools import partial

import pytest

from app.broker import Broker, build_broker
from app.errors import DatabaseUnavailable
from app.maintenance.due_check import DueCheck
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from tests.api_client import Api
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase

SERVICES = ("promotion", "lateness", "expiry", "firing", "releasing", "turns")
PAST = "now() - interval '1 minute'"
CHANGES = {
    "nothing": "SELECT 1",
    "promotion": f"UPDATE jobs SET state = 'scheduled', run_at = {PAST} WHERE state = 'ready'",
    "lateness": f"UPDATE jobs SET expires_at = {PAST} WHERE state = 'ready'",
    "expiry": f"UPDATE jobs SET lease_expires_at = {PAST} WHERE state = 'running'",
    "firing": f"UPDATE schedules SET next_run_at = {PAST}",
    "releasing": "INSERT INTO finished_parents (lane, id, state) SELECT lane, id, 'completed' FROM jobs LIMIT 1",
    "turns": "UPDATE jobs SET state = 'pending' WHERE state = 'ready'",
    "ended cool-down": (
        f"INSERT INTO group_cooldowns (lane, group_key, until) SELECT lane, 'g', {PAST} FROM jobs LIMIT 1"
    ),
}


class DueCheckRun:
    """Runs the due check and records which services it has woken."""

    def __init__(self, broker_services: Broker) -> None:
        self.woken: list[str] = []
        self.lease_rescuer = LeaseRescuer(broker_services.infra, broker_services.settlements)
        self._broker_services = broker_services
        self._wakes = {name: partial(self.woken.append, name) for name in SERVICES}

    async def run(self) -> None:
        infra = self._broker_services.infra
        await infra.db.open()
        try:
            await infra.clock.refresh(infra.db)
            job_scheduler = JobScheduler(infra, self._broker_services.queues, self._broker_services.signals)
            await DueCheck(
                infra, self.lease_rescuer, job_scheduler, self._broker_services.periodic_enqueuer, self._wakes
            ).run_once()
        finally:
            await infra.db.close()


@pytest.fixture
def services_without_scans(db_without_scans: TestDatabase, loop: Loop) -> Broker:
    return build_broker(TEST_SETTINGS, db_without_scans.dsn)


@pytest.mark.parametrize("service", CHANGES)
def test_due_check_wakes_only_services_with_work(
    api_without_scans: Api, db_without_scans: TestDatabase, services_without_scans: Broker, loop: Loop, service: str
) -> None:
    """The database also has jobs, leases and schedules that are not due."""
    api_without_scans.enqueue_many(2)
    api_without_scans.claim_one()
    api_without_scans.enqueue(delay_seconds=3600)
    api_without_scans.http.put(
        f"/schedules/{api_without_scans.queue}", json={"every_seconds": 3600, "job": {"job_type": "t"}}
    ).raise_for_status()
    db_without_scans.execute(CHANGES[service])

    due_check_run = DueCheckRun(services_without_scans)
    loop.run(due_check_run.run())
    assert due_check_run.woken == {"nothing": [], "ended cool-down": ["turns"]}.get(service, [service])


def test_due_check_without_expired_leases_advances_the_scan(services_without_scans: Broker, loop: Loop) -> None:
    due_check_run = DueCheckRun(services_without_scans)
    before = due_check_run.lease_rescuer.scan_from
    loop.run(due_check_run.run())
    assert due_check_run.lease_rescuer.scan_from > before


def test_due_check_that_is_blocked_wakes_all_services(
    db_without_scans: TestDatabase, services_without_scans: Broker, loop: Loop
) -> None:
    """A lock on one table does not delay the services that do not use it."""
    due_check_run = DueCheckRun(services_without_scans)
    with db_without_scans.uncommitted("LOCK TABLE schedules"), pytest.raises(DatabaseUnavailable):
        loop.run(due_check_run.run())
    assert set(due_check_run.woken) == {*SERVICES}


def test_due_check_sets_an_alarm_for_a_job_due_soon(
    api_without_scans: Api, db_without_scans: TestDatabase, services_without_scans: Broker, loop: Loop
) -> None:
    api_without_scans.enqueue(delay_seconds=3600)
    db_without_scans.execute("UPDATE jobs SET run_at = now() + interval '20 milliseconds' WHERE state = 'scheduled'")

    async def run() -> None:
        infra = services_without_scans.infra
        await infra.db.open()
        await infra.clock.refresh(infra.db)
        job_scheduler, woken = (
            JobScheduler(infra, services_without_scans.queues, services_without_scans.signals),
            asyncio.Event(),
        )
        job_scheduler.wake = woken.set
        wakes = dict.fromkeys(SERVICES, woken.set)
        await DueCheck(
            infra,
            LeaseRescuer(infra, services_without_scans.settlements),
            job_scheduler,
            services_without_scans.periodic_enqueuer,
            wakes,
        ).run_once()
        async with asyncio.timeout(20):
            await woken.wait()
        await infra.db.close()

    loop.run(run())
