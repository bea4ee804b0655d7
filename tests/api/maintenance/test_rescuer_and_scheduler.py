"""Lease rescuer and job scheduler: several brokers run them at once, and each job is moved once.

The broker of the test run scans, too: a run in the test may end while that of the broker has not.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.broker import Broker
from app.maintenance.job_scheduler import JobScheduler
from app.maintenance.lease_rescuer import LeaseRescuer
from app.maintenance.services import BackgroundService, ServiceRunner
from app.periodic_service import FunctionService
from tests.api_client import Api
from tests.database import Loop, TestDatabase


def run_together(loop: Loop, *services: LeaseRescuer | JobScheduler) -> None:
    async def run_all() -> None:
        await asyncio.gather(*[service.run_once() for service in services])

    loop.run(run_all())


def test_concurrent_rescuers_rescue_each_lease_once(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    ids = api.enqueue_many(40)
    api.claim(max_jobs=40)
    db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    db.make_checks_due()
    run_together(
        loop, *[LeaseRescuer(infra=broker_services.infra, lease_ender=broker_services.lease_ender) for _ in range(4)]
    )
    eventually(lambda: api.counts() == {"ready": 40})
    jobs = [api.job(job_id) for job_id in ids]
    assert {(job["state"], job["attempt"], job["crashes"]) for job in jobs} == {("ready", 1, 1)}


@pytest.mark.slow
def test_rescuer_rescues_more_than_one_batch(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    api.enqueue_many(1000)
    api.claim(max_jobs=1000)
    db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    db.make_checks_due()
    run_together(loop, LeaseRescuer(infra=broker_services.infra, lease_ender=broker_services.lease_ender))
    eventually(lambda: api.counts() == {"ready": 1000})


def test_rescuer_leaves_live_leases_alone(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    api.enqueue_many(2)
    held, lost = api.claim(max_jobs=2)["jobs"]
    db.age(lost["id"], 61)
    run_together(loop, LeaseRescuer(infra=broker_services.infra, lease_ender=broker_services.lease_ender))
    eventually(lambda: api.job(lost["id"])["state"] == "ready")
    assert api.job(held["id"])["state"] == "running"


def test_lease_that_expired_long_before_the_last_scan_is_found(
    api: Api, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue()
    api.claim_one()
    db.age(job["id"], 10_000)
    eventually(lambda: api.job(job["id"])["state"] == "ready")


def test_concurrent_schedulers_make_each_due_job_ready_once(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    api.batch(
        *[{"delay_seconds": 60, "queue": f"{api.queue}-{n % 3}"} for n in range(90)], *[{"delay_seconds": 3600}] * 5
    )
    db.execute("UPDATE jobs SET run_at = run_at - interval '1 minute'")
    run_together(
        loop,
        *[
            JobScheduler(infra=broker_services.infra, queues=broker_services.queues, events=broker_services.events)
            for _ in range(4)
        ],
    )
    counts = eventually(lambda: (counts := api.get("/stats")["counts"])["ready"] == 90 and counts)
    assert counts["scheduled"] == 5


def test_due_retry_has_no_state_reason(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), retry_after_seconds=60)
    db.age(job["id"], 60)
    run_together(
        loop, JobScheduler(infra=broker_services.infra, queues=broker_services.queues, events=broker_services.events)
    )
    ready = eventually(lambda: (seen := api.job(job["id"]))["state"] == "ready" and seen)
    assert ("state_reason" in ready, ready["attempt"]) == (False, 1)


def test_scheduler_does_not_spin_on_a_job_locked_by_another_session(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue(delay_seconds=3600)
    runner, run_counts = ServiceRunner(infra=broker_services.infra), Counter[str]()

    class CountedScheduler(JobScheduler):
        async def run_once(self) -> None:
            await super().run_once()
            run_counts["schedule"] += 1

    job_scheduler = CountedScheduler(
        infra=broker_services.infra, queues=broker_services.queues, events=broker_services.events
    )

    async def tick() -> None:
        run_counts["tick"] += 1

    async def start() -> None:
        runner.add(BackgroundService("schedule", job_scheduler, 3600))
        runner.add(BackgroundService("tick", FunctionService(tick), 0.01))

    # FOR KEY SHARE blocks the scheduler, not this test.
    with db.uncommitted("SELECT FROM jobs WHERE id = $1 FOR KEY SHARE", job["id"]):
        db.age(job["id"], 3601)
        loop.run(start())
        eventually(lambda: run_counts["schedule"] and run_counts["tick"] > 20)
        loop.run(runner.stop())
        assert run_counts["schedule"] == 1
        assert api.job(job["id"])["state"] == "scheduled"
    eventually(lambda: api.job(job["id"])["state"] == "ready")
