"""The due check: services that have work are woken, the others are left alone."""

import asyncio

import pytest

from app.broker import Broker, build_broker
from app.errors import DatabaseUnavailable
from app.maintenance.lease_rescuer import LeaseRescuer
from tests.api_client import Api
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase

PAST = "now() - interval '1 minute'"
CHANGES = {
    "nothing": "SELECT 1",
    "job scheduler": f"UPDATE jobs SET state = 'scheduled', run_at = {PAST} WHERE state = 'ready'",
    "start deadlines": f"UPDATE jobs SET expires_at = {PAST} WHERE state = 'ready'",
    "lease rescuer": f"UPDATE lease_checks SET check_at = {PAST}",
    "periodic enqueuer": f"UPDATE schedules SET next_run_at = {PAST}",
    "dependency resolver": (
        "INSERT INTO finished_parents (lane, id, state) SELECT lane, id, 'completed' FROM jobs LIMIT 1"
    ),
    "group scheduler": "UPDATE jobs SET state = 'pending' WHERE state = 'ready'",
    "ended cool-down": (
        f"INSERT INTO group_cooldowns (lane, group_key, until) SELECT lane, 'g', {PAST} FROM jobs LIMIT 1"
    ),
}


async def run_due_check(broker_services: Broker) -> None:
    infra = broker_services.infra
    await infra.db.open()
    try:
        await infra.clock.refresh(infra.db)
        await broker_services.due_check.run_once()
    finally:
        await infra.db.close()


def woken(broker_services: Broker) -> list[str]:
    return [name for name, service in broker_services.due_check.services.items() if service.is_woken]


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

    loop.run(run_due_check(services_without_scans))
    assert woken(services_without_scans) == {"nothing": [], "ended cool-down": ["group scheduler"]}.get(
        service, [service]
    )


def test_due_check_without_expired_leases_advances_the_scan(services_without_scans: Broker, loop: Loop) -> None:
    lease_rescuer = services_without_scans.due_check.services["lease rescuer"]
    assert isinstance(lease_rescuer, LeaseRescuer)
    before = lease_rescuer.scan_from
    loop.run(run_due_check(services_without_scans))
    assert lease_rescuer.scan_from > before


def test_due_check_that_is_blocked_wakes_all_services(
    db_without_scans: TestDatabase, services_without_scans: Broker, loop: Loop
) -> None:
    """A lock on one table does not delay the services that do not use it."""
    with db_without_scans.uncommitted("LOCK TABLE schedules"), pytest.raises(DatabaseUnavailable):
        loop.run(run_due_check(services_without_scans))
    assert woken(services_without_scans) == [*services_without_scans.due_check.services]


def test_due_check_sets_an_alarm_for_a_job_due_soon(
    api_without_scans: Api, db_without_scans: TestDatabase, services_without_scans: Broker, loop: Loop
) -> None:
    api_without_scans.enqueue(delay_seconds=3600)
    db_without_scans.execute("UPDATE jobs SET run_at = now() + interval '20 milliseconds' WHERE state = 'scheduled'")

    async def run() -> None:
        infra, due_check = services_without_scans.infra, services_without_scans.due_check
        await infra.db.open()
        await infra.clock.refresh(infra.db)
        await due_check.run_once()
        async with asyncio.timeout(20):
            await due_check.services["job scheduler"].wait(20)
        await infra.db.close()

    loop.run(run())
