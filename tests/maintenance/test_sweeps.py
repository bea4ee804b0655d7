"""Expiry and promotion: several processes sweep at once, and each job is moved once. The test's broker sweeps along, so a sweep of
ours may end while the broker's has not."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.broker import Broker
from app.maintenance.chores import JobScheduler, LeaseRescuer
from app.maintenance.services import PeriodicService, ServiceRunner
from tests.api import Api
from tests.database import Loop, TestDatabase


def sweep_at_once(loop: Loop, *sweeps: LeaseRescuer | JobScheduler) -> None:
    async def together() -> None:
        await asyncio.gather(*[sweep.run_once() for sweep in sweeps])

    loop.run(together())


def test_sweeps_at_once_take_each_lease_back_once(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    ids = api.enqueue_many(40)
    api.claim(max_jobs=40)
    db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    sweep_at_once(loop, *[LeaseRescuer(broker_services.infra, broker_services.settlements) for _ in range(4)])
    eventually(lambda: api.counts() == {"ready": 40})
    jobs = [api.job(job_id) for job_id in ids]
    assert {(job["state"], job["attempt"], job["crashes"]) for job in jobs} == {("ready", 1, 1)}


def test_a_sweep_takes_back_more_than_one_batch(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    api.enqueue_many(1000)
    api.claim(max_jobs=1000)
    db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    sweep_at_once(loop, LeaseRescuer(broker_services.infra, broker_services.settlements))
    eventually(lambda: api.counts() == {"ready": 1000})


def test_a_sweep_leaves_leases_that_live(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    api.enqueue_many(2)
    held, lost = api.claim(max_jobs=2)["jobs"]
    db.age(lost["id"], 61)
    sweep_at_once(loop, LeaseRescuer(broker_services.infra, broker_services.settlements))
    eventually(lambda: api.job(lost["id"])["state"] == "ready")
    assert api.job(held["id"])["state"] == "running"


def test_a_lease_that_ended_long_before_the_last_sweep_is_found_in_the_end(
    api: Api, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue()
    api.claim_one()
    db.age(job["id"], 10_000)
    eventually(lambda: api.job(job["id"])["state"] == "ready")


def test_sweeps_at_once_make_each_due_job_ready_once(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    api.batch(
        *[{"delay_seconds": 60, "queue": f"{api.queue}-{n % 3}"} for n in range(90)], *[{"delay_seconds": 3600}] * 5
    )
    db.execute("UPDATE jobs SET run_at = run_at - interval '1 minute'")
    sweep_at_once(
        loop, *[JobScheduler(broker_services.infra, broker_services.queues, broker_services.signals) for _ in range(4)]
    )
    counts = eventually(lambda: (counts := api.get("/stats")["counts"])["ready"] == 90 and counts)
    assert counts["scheduled"] == 5


def test_a_retry_that_becomes_due_has_no_reason_left(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue()
    api.fail(api.claim_one(), retry_after_seconds=60)
    db.age(job["id"], 60)
    sweep_at_once(loop, JobScheduler(broker_services.infra, broker_services.queues, broker_services.signals))
    ready = eventually(lambda: (seen := api.job(job["id"]))["state"] == "ready" and seen)
    assert ("state_reason" in ready, ready["attempt"]) == (False, 1)


def test_promotion_does_not_run_again_and_again_for_a_job_that_another_session_holds(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue(delay_seconds=3600)
    promotion, runner, ran = (
        JobScheduler(broker_services.infra, broker_services.queues, broker_services.signals),
        ServiceRunner(broker_services.infra),
        Counter[str](),
    )

    async def promote() -> None:
        await promotion.run_once()
        ran["promotion"] += 1

    async def tick() -> None:
        ran["tick"] += 1

    async def start() -> None:
        promotion.wake = runner.start(PeriodicService("promotion", promote, 3600))
        runner.start(PeriodicService("tick", tick, 0.01))

    with db.uncommitted(
        "SELECT FROM jobs WHERE id = $1 FOR KEY SHARE", job["id"]
    ):  # in the way of promotion, not of this test
        db.age(job["id"], 3601)
        loop.run(start())
        eventually(lambda: ran["promotion"] and ran["tick"] > 20)
        loop.run(runner.stop())
        assert ran["promotion"] == 1
        assert api.job(job["id"])["state"] == "scheduled"
    eventually(lambda: api.job(job["id"])["state"] == "ready")
