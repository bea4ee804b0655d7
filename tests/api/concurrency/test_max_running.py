"""max_running: how many jobs of a queue run at once, over all workers and brokers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.api.concurrency.conftest import Expire, ids
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background, parked_polls

EndLease = Callable[[Api, Json], object]


def cancel_running(api: Api, job: Json) -> None:
    api.cancel(job, status=202)
    api.release(job)


LEASE_ENDS: dict[str, EndLease] = {
    "complete": Api.complete,
    "release": Api.release,
    "dead letter": lambda api, job: api.fail(job, retryable=False),
    "failure": lambda api, job: api.fail(job, retry_after_seconds=3600),
    "snooze": lambda api, job: api.snooze(job, 3600),
    "cancel": cancel_running,
}


@pytest.mark.parametrize("max_jobs", [1, 2, 10])
def test_no_more_jobs_run_than_max_running(api: Api, max_jobs: int) -> None:
    api.configure(max_running=3)
    api.enqueue_many(8)
    held = [job for _ in range(8) for job in api.claim(max_jobs=max_jobs)["jobs"]]
    assert len(held) == 3
    assert api.counts() == {"running": 3, "ready": 5}


def test_concurrent_claims_on_two_brokers_never_exceed_max_running(
    api: Api, second_api: Api, background: Background, db: TestDatabase
) -> None:
    api.configure(max_running=5)
    api.enqueue_many(60)
    done: list[str] = []

    def work(broker_api: Api) -> None:
        while len(done) < 60:
            claimed = broker_api.claim(max_jobs=3)["jobs"]
            assert db.value("SELECT count(*) FROM jobs WHERE state = 'running'") <= 5
            for job in claimed:
                broker_api.complete(job)
            done.extend(ids(claimed))

    background.together(*[partial(work, broker_api) for broker_api in (api, second_api) * 4])
    assert len(set(done)) == len(done) == 60


@pytest.mark.parametrize("lease_end", LEASE_ENDS.values(), ids=LEASE_ENDS)
def test_end_of_a_lease_frees_its_slot_and_wakes_a_poll(
    isolated_api: Api, background: Background, lease_end: EndLease
) -> None:
    isolated_api.configure(max_running=2)
    isolated_api.enqueue_many(4)
    first, other = isolated_api.claim(max_jobs=2)["jobs"]
    poll = background.claim(isolated_api, max_jobs=4)
    wait_until(lambda: parked_polls(isolated_api.http) == 1)
    lease_end(isolated_api, first)
    assert len(poll.result(20)["jobs"]) == 1
    assert isolated_api.claim()["jobs"] == []
    assert isolated_api.complete(other)["status"] == "settled"
    assert len(isolated_api.claim(max_jobs=4)["jobs"]) == 1


def test_expired_lease_frees_its_slot(isolated_api: Api, isolated_db: TestDatabase, background: Background) -> None:
    isolated_api.configure(max_running=1)
    isolated_api.enqueue_many(2)
    lost = isolated_api.claim_one()
    poll = background.claim(isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 1)
    isolated_db.age(lost["id"], 61)
    assert len(poll.result(20)["jobs"]) == 1


def test_slots_freed_together_wake_as_many_polls(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(max_running=3)
    isolated_api.enqueue_many(6)
    held = isolated_api.claim(max_jobs=3)["jobs"]
    polls = background.claims(3, isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 3)
    isolated_api.settle(
        *[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in held]
    )
    assert len({job["id"] for poll in polls for job in poll.result(20)["jobs"]}) == 3


def test_poll_for_one_job_type_does_not_block_a_slot_for_others(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(max_running=1)
    isolated_api.enqueue_many(2, job_type="a")
    held = isolated_api.claim_one()
    wrong, right = background.claim(isolated_api, job_types=["b"]), background.claim(isolated_api, job_types=["a"])
    wait_until(lambda: parked_polls(isolated_api.http) == 2)
    isolated_api.complete(held)
    assert len(right.result(20)["jobs"]) == 1
    isolated_api.enqueue(job_type="b")
    isolated_api.complete(right.result()["jobs"][0])
    assert len(wrong.result(20)["jobs"]) == 1


def test_claim_with_settlements_uses_the_slots_that_it_frees(api: Api) -> None:
    api.configure(max_running=2)
    api.enqueue_many(4)
    held = api.claim(max_jobs=2)["jobs"]
    settled = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in held]
    assert len(api.claim(max_jobs=5, settle=settled)["jobs"]) == 2


def test_claim_with_idempotency_key_respects_max_running_and_is_replayed(api: Api) -> None:
    api.configure(max_running=2)
    api.enqueue_many(4)
    first = api.claim(max_jobs=4, key="k")["jobs"]
    assert len(first) == 2
    assert api.claim(max_jobs=4, key="k")["jobs"] == first
    assert api.claim(max_jobs=4, key="other")["jobs"] == []


def test_claim_of_several_queues_respects_max_running_of_each(api: Api) -> None:
    names = [api.queue, f"{api.queue}-free", f"{api.queue}-narrow"]
    api.configure(max_running=1)
    api.put(f"/queues/{names[2]}", {"max_running": 2})
    for name in names:
        api.enqueue_many(5, queue=name)
    claimed = api.claim(queues=names, max_jobs=100)["jobs"]
    assert [sum(job["queue"] == name for job in claimed) for name in names] == [1, 5, 2]


def test_new_max_running_counts_jobs_that_already_run(api: Api) -> None:
    api.enqueue_many(5)
    first, second, third = api.claim(max_jobs=3)["jobs"]
    api.configure(max_running=2)
    assert api.claim(max_jobs=5)["jobs"] == []
    api.complete(first)
    assert api.claim(max_jobs=5)["jobs"] == []
    api.complete(second)
    assert len(api.claim(max_jobs=5)["jobs"]) == 1
    api.complete(third)
    assert len(api.claim(max_jobs=5)["jobs"]) == 1


def test_max_running_counts_jobs_delivered_by_another_broker(api: Api, second_api: Api) -> None:
    api.enqueue_many(5)
    assert len(second_api.claim(max_jobs=2)["jobs"]) == 2
    api.configure(max_running=2)
    assert api.claim(max_jobs=5)["jobs"] == []


def test_max_running_can_be_lowered_raised_and_removed_while_polls_wait(
    isolated_api: Api, background: Background
) -> None:
    isolated_api.configure(max_running=3)
    isolated_api.enqueue_many(9)
    held = isolated_api.claim(max_jobs=3)["jobs"]
    isolated_api.configure(max_running=1)
    poll = background.claim(isolated_api, max_jobs=9)
    wait_until(lambda: parked_polls(isolated_api.http) == 1)
    for job in held[:2]:
        isolated_api.complete(job)
    assert isolated_api.claim()["jobs"] == []
    isolated_api.reconfigure(max_running=2)
    assert len(poll.result(20)["jobs"]) == 1
    poll = background.claim(isolated_api, max_jobs=9)
    wait_until(lambda: parked_polls(isolated_api.http) == 1)
    isolated_api.configure()
    assert len(poll.result(20)["jobs"]) == 5


def test_max_running_set_again_counts_everything_that_runs(api: Api) -> None:
    api.configure(max_running=1)
    api.enqueue_many(5)
    api.claim_one()
    api.configure()
    assert len(api.claim(max_jobs=2)["jobs"]) == 2
    api.configure(max_running=4)
    assert len(api.claim(max_jobs=5)["jobs"]) == 1


def test_late_completion_frees_no_second_slot(api: Api, expire: Expire) -> None:
    api.configure(max_running=1)
    api.enqueue_many(3)
    late = api.claim_one()
    expire(late)
    assert api.complete(late)["status"] == "settled"
    api.claim_one()
    assert api.claim()["jobs"] == []


def test_heartbeat_keeps_the_slot(api: Api) -> None:
    api.configure(max_running=1)
    api.enqueue_many(2)
    held = api.claim_one()
    api.heartbeat_one(held, lease_seconds=100)
    assert api.claim()["jobs"] == []


def test_lease_that_its_worker_no_longer_lists_frees_its_slot(
    isolated_api: Api, isolated_db: TestDatabase, background: Background, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    isolated_api.configure(max_running=1)
    isolated_api.enqueue_many(2)
    lost = isolated_api.claim_one(worker_id="w")
    poll = background.claim(isolated_api)
    eventually(lambda: parked_polls(isolated_api.http) == 1)
    isolated_db.age(lost["id"], 3)
    for _ in range(2):
        isolated_api.heartbeat("w", holds_all=True)
    assert ids(poll.result(20)["jobs"]) == [lost["id"]]
