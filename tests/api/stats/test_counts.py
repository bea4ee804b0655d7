"""Counts by state are exact after every transition, before and after aggregation."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.stats.conftest import Aggregate, CountJobs
from tests.api_client import Api
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background

Step = Callable[[Api, TestDatabase], object]


def create_jobs_in_every_state(api: Api) -> None:
    """Creates jobs in every state, with three ready ones to claim."""
    api.dead_letter()
    api.cancel(api.enqueue())
    api.enqueue_many(5)
    api.complete(api.claim_one())
    api.claim_one()
    api.enqueue(delay_seconds=3600)


def expire(api: Api, db: TestDatabase) -> None:
    job = api.claim_one()
    db.age(job["id"], 61)
    wait_until(lambda: api.job(job["id"])["state"] != "running")


def complete_late(api: Api, db: TestDatabase) -> None:
    job = api.claim_one()
    db.age(job["id"], 61)
    wait_until(lambda: api.job(job["id"])["state"] == "ready")
    api.complete(job)


def fail_late(api: Api, db: TestDatabase) -> None:
    job = api.claim_one()
    db.age(job["id"], 61)
    wait_until(lambda: api.job(job["id"])["state"] == "ready")
    api.fail(job)


def die_of_expiry(api: Api, db: TestDatabase) -> None:
    api.enqueue(priority=9, max_attempts=1)
    expire(api, db)


def cancel_running(api: Api, db: TestDatabase) -> None:
    job = api.claim_one()
    api.cancel(job, status=202)
    api.release(job)


def become_due(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(delay_seconds=60)
    db.age(job["id"], 60)
    wait_until(lambda: api.job(job["id"])["state"] == "ready")


def postpone(api: Api, db: TestDatabase) -> None:
    api.patch(f"/jobs/{api.enqueue()['id']}", {"run_at": db.instant(60)})


def bring_forward(api: Api, db: TestDatabase) -> None:
    api.patch(f"/jobs/{api.enqueue(delay_seconds=60)['id']}", {"run_at": db.instant(-1)})


def replay(api: Api, **fields: Any) -> object:
    return api.post(
        "/dead-letters/replay",
        {"ids": [api.dead_letter(priority=9)["id"], api.dead_letter(priority=9)["id"]], **fields},
    )


STEPS: dict[str, Step] = {
    "enqueue": lambda api, db: api.enqueue(),
    "enqueue later": lambda api, db: api.enqueue(delay_seconds=60),
    "enqueue many": lambda api, db: api.batch({}, {}, {"delay_seconds": 60}),
    "enqueue with a key, twice": lambda api, db: [api.batch({}, key="k"), api.batch({}, key="k")],
    "enqueue a rejected batch": lambda api, db: api.batch({}, {"priority": "x"}, status=422),
    "claim": lambda api, db: api.claim(max_jobs=2),
    "claim with a key, twice": lambda api, db: [api.claim(key="k"), api.claim(key="k")],
    "complete": lambda api, db: api.complete(api.claim_one()),
    "fail and retry": lambda api, db: api.fail(api.claim_one()),
    "die": lambda api, db: api.dead_letter(),
    "snooze": lambda api, db: api.snooze(api.claim_one(), 60),
    "release": lambda api, db: api.release(api.claim_one()),
    "expire": expire,
    "die of expiry": die_of_expiry,
    "complete late": complete_late,
    "fail late": fail_late,
    "cancel": lambda api, db: api.cancel(api.enqueue()),
    "cancel later ones": lambda api, db: api.cancel(api.enqueue(delay_seconds=60)),
    "cancel running": cancel_running,
    "cancel many": lambda api, db: api.post("/jobs/cancel", {"filter": {"queue": api.queue}}),
    "become due": become_due,
    "run now": lambda api, db: api.post(f"/jobs/{api.enqueue(delay_seconds=60)['id']}/run-now"),
    "postpone": postpone,
    "bring forward": bring_forward,
    "replay": lambda api, db: replay(api),
    "replay spread": lambda api, db: replay(api, spread_seconds=600),
    "replay elsewhere": lambda api, db: replay(api, overrides={"queue": f"{api.queue}-b"}),
    "purge": lambda api, db: api.post("/dead-letters/purge", {"ids": [api.dead_letter()["id"]], "dry_run": False}),
}


@pytest.mark.parametrize("step", STEPS)
def test_counts_are_exact_after(
    api: Api, db: TestDatabase, count_jobs: CountJobs, aggregate: Aggregate, step: str
) -> None:
    create_jobs_in_every_state(api)
    aggregate()
    STEPS[step](api, db)
    expected = count_jobs(api.queue)
    assert api.counts() == expected
    aggregate()
    assert api.counts() == expected


def test_counts_include_every_state_even_if_zero(api: Api) -> None:
    api.cancel(api.enqueue())
    states = ("scheduled", "blocked", "ready", "running", "completed", "dead", "cancelled")
    assert api.stats()["counts"] == {**dict.fromkeys(states, 0), "cancelled": 1}


def test_overall_counts_are_the_sum_of_all_queues(api: Api) -> None:
    api.batch(*[{"queue": f"{api.queue}-{n}"} for n in range(3)], {"delay_seconds": 60})
    counts = api.get("/stats")["counts"]
    assert (counts["ready"], counts["scheduled"]) == (3, 1)


def test_counts_of_a_queue_exclude_other_queues(api: Api) -> None:
    api.enqueue()
    api.enqueue(queue=f"{api.queue}-b")
    assert api.counts() == {"ready": 1}


def test_statistics_of_an_unknown_queue_are_not_found(api: Api) -> None:
    assert api.get("/queues/no-such-queue/stats", status=404)["code"] == "not_found"


def test_counts_stay_exact_during_aggregation(
    api: Api, count_jobs: CountJobs, aggregate: Aggregate, background: Background
) -> None:
    def run_jobs(_: int) -> None:
        api.enqueue_many(2)
        for job in api.claim(max_jobs=2)["jobs"]:
            api.complete(job)

    runs = [background.submit(run_jobs, n) for n in range(30)]
    while not all(run.done() for run in runs):
        aggregate()
        assert sum(api.counts().values()) <= 60
    assert api.counts() == count_jobs(api.queue)
    assert sum(api.counts().values()) == 60
