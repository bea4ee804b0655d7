"""max_running: how many jobs of a queue run at once, whoever asks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire, ids
from tests.polls import Background, parked

Ending = Callable[[Api, Json], object]


def cancel(api: Api, job: Json) -> None:
    api.cancel(job, status=202)
    api.release(job)


ENDINGS: dict[str, Ending] = {
    "complete": Api.complete,
    "release": Api.release,
    "death": lambda api, job: api.fail(job, retryable=False),
    "failure": lambda api, job: api.fail(job, retry_after_seconds=3600),
    "snooze": lambda api, job: api.snooze(job, 3600),
    "cancel": cancel,
}


@pytest.mark.parametrize("max_jobs", [1, 2, 10])
def test_no_more_run_than_may(api: Api, max_jobs: int) -> None:
    api.configure(max_running=3)
    api.enqueue_many(8)
    held = [job for _ in range(8) for job in api.claim(max_jobs=max_jobs)["jobs"]]
    assert len(held) == 3
    assert api.counts() == {"running": 3, "ready": 5}


def test_claimers_at_once_on_two_brokers_never_exceed_it(
    api: Api, second: Api, background: Background, db: TestDatabase
) -> None:
    api.configure(max_running=5)
    api.enqueue_many(60)
    done: list[str] = []

    def work(at: Api) -> None:
        while len(done) < 60:
            taken = at.claim(max_jobs=3)["jobs"]
            assert db.value("SELECT count(*) FROM jobs WHERE state = 'running'") <= 5
            for job in taken:
                at.complete(job)
            done.extend(ids(taken))

    background.together(*[partial(work, at) for at in (api, second) * 4])
    assert len(set(done)) == len(done) == 60


@pytest.mark.parametrize("lease_end", ENDINGS.values(), ids=ENDINGS)
def test_whatever_ends_a_lease_frees_its_slot_and_wakes_a_poll(
    lone: Api, background: Background, lease_end: Ending
) -> None:
    lone.configure(max_running=2)
    lone.enqueue_many(4)
    first, other = lone.claim(max_jobs=2)["jobs"]
    poll = background.claim(lone, max_jobs=4)
    wait_until(lambda: parked(lone.http) == 1)
    lease_end(lone, first)
    assert len(poll.result(20)["jobs"]) == 1
    assert lone.claim()["jobs"] == []
    assert lone.complete(other)["status"] == "settled"
    assert len(lone.claim(max_jobs=4)["jobs"]) == 1


def test_an_expired_lease_frees_its_slot(lone: Api, lone_db: TestDatabase, background: Background) -> None:
    lone.configure(max_running=1)
    lone.enqueue_many(2)
    lost = lone.claim_one()
    poll = background.claim(lone)
    wait_until(lambda: parked(lone.http) == 1)
    lone_db.age(lost["id"], 61)
    assert len(poll.result(20)["jobs"]) == 1


def test_slots_that_come_free_together_wake_as_many_polls(lone: Api, background: Background) -> None:
    lone.configure(max_running=3)
    lone.enqueue_many(6)
    held = lone.claim(max_jobs=3)["jobs"]
    polls = background.claims(3, lone)
    wait_until(lambda: parked(lone.http) == 3)
    lone.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in held])
    assert len({job["id"] for poll in polls for job in poll.result(20)["jobs"]}) == 3


def test_a_poll_of_one_type_does_not_keep_a_slot_from_the_others(lone: Api, background: Background) -> None:
    lone.configure(max_running=1)
    lone.enqueue_many(2, job_type="a")
    held = lone.claim_one()
    wrong, right = background.claim(lone, job_types=["b"]), background.claim(lone, job_types=["a"])
    wait_until(lambda: parked(lone.http) == 2)
    lone.complete(held)
    assert len(right.result(20)["jobs"]) == 1
    lone.enqueue(job_type="b")
    lone.complete(right.result()["jobs"][0])
    assert len(wrong.result(20)["jobs"]) == 1


def test_a_claim_that_settles_takes_the_slots_that_it_frees(api: Api) -> None:
    api.configure(max_running=2)
    api.enqueue_many(4)
    held = api.claim(max_jobs=2)["jobs"]
    settled = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in held]
    assert len(api.claim(max_jobs=5, settle=settled)["jobs"]) == 2


def test_a_claim_with_a_key_keeps_to_it_and_is_repeated(api: Api) -> None:
    api.configure(max_running=2)
    api.enqueue_many(4)
    first = api.claim(max_jobs=4, key="k")["jobs"]
    assert len(first) == 2
    assert api.claim(max_jobs=4, key="k")["jobs"] == first
    assert api.claim(max_jobs=4, key="other")["jobs"] == []


def test_of_several_queues_each_keeps_to_its_own(api: Api) -> None:
    names = [api.queue, f"{api.queue}-free", f"{api.queue}-narrow"]
    api.configure(max_running=1)
    api.put(f"/queues/{names[2]}", {"max_running": 2})
    for name in names:
        api.enqueue_many(5, queue=name)
    taken = api.claim(queues=names, max_jobs=100)["jobs"]
    assert [sum(job["queue"] == name for job in taken) for name in names] == [1, 5, 2]


def test_what_runs_already_counts_when_it_is_configured(api: Api) -> None:
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


def test_what_another_broker_has_handed_out_counts_too(api: Api, second: Api) -> None:
    api.enqueue_many(5)
    assert len(second.claim(max_jobs=2)["jobs"]) == 2
    api.configure(max_running=2)
    assert api.claim(max_jobs=5)["jobs"] == []


def test_it_can_be_lowered_raised_and_removed_while_polls_wait(lone: Api, background: Background) -> None:
    lone.configure(max_running=3)
    lone.enqueue_many(9)
    held = lone.claim(max_jobs=3)["jobs"]
    lone.configure(max_running=1)
    poll = background.claim(lone, max_jobs=9)
    wait_until(lambda: parked(lone.http) == 1)
    for job in held[:2]:
        lone.complete(job)
    assert lone.claim()["jobs"] == []
    lone.reconfigure(max_running=2)
    assert len(poll.result(20)["jobs"]) == 1
    poll = background.claim(lone, max_jobs=9)
    wait_until(lambda: parked(lone.http) == 1)
    lone.configure()
    assert len(poll.result(20)["jobs"]) == 5


def test_after_it_was_removed_and_set_again_everything_that_runs_counts(api: Api) -> None:
    api.configure(max_running=1)
    api.enqueue_many(5)
    api.claim_one()
    api.configure()
    assert len(api.claim(max_jobs=2)["jobs"]) == 2
    api.configure(max_running=4)
    assert len(api.claim(max_jobs=5)["jobs"]) == 1


def test_a_late_completion_takes_no_slot_twice(api: Api, expire: Expire) -> None:
    api.configure(max_running=1)
    api.enqueue_many(3)
    late = api.claim_one()
    expire(late)
    assert api.complete(late)["status"] == "settled"
    api.claim_one()
    assert api.claim()["jobs"] == []


def test_a_heartbeat_keeps_the_slot(api: Api) -> None:
    api.configure(max_running=1)
    api.enqueue_many(2)
    held = api.claim_one()
    api.heartbeat_one(held, lease_seconds=100)
    assert api.claim()["jobs"] == []


def test_a_lease_that_its_worker_no_longer_lists_gives_its_slot_back(
    lone: Api, lone_db: TestDatabase, background: Background, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    lone.configure(max_running=1)
    lone.enqueue_many(2)
    lost = lone.claim_one(worker_id="w")
    poll = background.claim(lone)
    eventually(lambda: parked(lone.http) == 1)
    lone_db.age(lost["id"], 3)
    for _ in range(2):
        lone.heartbeat("w", holds_all=True)
    assert ids(poll.result(20)["jobs"]) == [lost["id"]]
