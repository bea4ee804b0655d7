"""max_running_per_group = 1: the jobs of a group run one after the other, in the order in which they came."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire, Worker, ids, settled
from tests.polls import Background, parked

BackAgain = Callable[[Api, Json, Expire], object]

BACK_AT_ONCE: dict[str, BackAgain] = {
    "release": lambda api, job, expire: api.release(job),
    "failure": lambda api, job, expire: api.fail(job, retry_after_seconds=0),
    "snooze": lambda api, job, expire: api.snooze(job, 0),
    "expiry": lambda api, job, expire: expire(job),
}
PUT_OFF: dict[str, BackAgain] = {
    "failure": lambda api, job, expire: api.fail(job, retry_after_seconds=3600),
    "snooze": lambda api, job, expire: api.snooze(job, 3600),
}
ENDS: dict[str, BackAgain] = {
    "complete": lambda api, job, expire: api.complete(job),
    "death": lambda api, job, expire: api.fail(job, retryable=False),
    "cancel": lambda api, job, expire: (api.cancel(job, status=202), api.release(job)),
}


@pytest.fixture(autouse=True)
def configured(api: Api) -> None:
    api.configure(max_running_per_group=1)


def test_one_after_the_other_in_the_order_of_their_coming(api: Api, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    held = worker.takes(first)
    assert worker.gets_nothing()
    api.complete(held)
    worker.does(second, third)


@pytest.mark.parametrize("back", BACK_AT_ONCE.values(), ids=BACK_AT_ONCE)
def test_a_job_that_comes_back_is_the_next_one_again(api: Api, worker: Worker, expire: Expire, back: BackAgain) -> None:
    jobs = api.enqueue_many(3, group="a")
    back(api, worker.takes(jobs[0]), expire)
    back(api, worker.takes(jobs[0]), expire)
    worker.does(*jobs)


@pytest.mark.parametrize("off", PUT_OFF.values(), ids=PUT_OFF)
def test_a_job_that_is_put_off_holds_back_those_behind_it(
    api: Api, worker: Worker, expire: Expire, db: TestDatabase, off: BackAgain
) -> None:
    jobs = api.enqueue_many(3, group="a")
    off(api, worker.takes(jobs[0]), expire)
    assert worker.gets_nothing()
    db.age(jobs[0], 3600)
    worker.does(*jobs)


@pytest.mark.parametrize("off", PUT_OFF.values(), ids=PUT_OFF)
def test_a_job_that_is_put_off_can_be_hurried(api: Api, worker: Worker, expire: Expire, off: BackAgain) -> None:
    jobs = api.enqueue_many(3, group="a")
    off(api, worker.takes(jobs[0]), expire)
    api.post(f"/jobs/{jobs[0]}/run-now")
    worker.does(*jobs)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_next_one_wakes_a_poll_when_the_last_has_ended(
    lone: Api, background: Background, expire: Expire, end: BackAgain
) -> None:
    lone.configure(max_running_per_group=1)
    first, second = lone.enqueue_many(2, group="a")
    held = Worker(lone).takes(first)
    poll = background.claim(lone)
    wait_until(lambda: parked(lone.http) == 1)
    end(lone, held, expire)
    assert ids(poll.result(20)["jobs"]) == [second]


def test_a_late_completion_lets_the_next_one_begin(api: Api, worker: Worker, expire: Expire) -> None:
    first, second = api.enqueue_many(2, group="a")
    late = worker.takes(first)
    expire(late)
    api.complete(late)
    worker.does(second)


def test_a_dead_letter_that_is_replayed_comes_before_younger_ones(api: Api, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    dead = worker.takes(first)
    api.fail(dead, retryable=False)
    running = worker.takes(second)
    api.replay(dead)
    assert worker.gets_nothing()
    api.complete(running)
    worker.does(first, third)


def test_when_the_one_whose_turn_it_is_is_cancelled_the_next_has_it(api: Api, worker: Worker) -> None:
    jobs = api.enqueue_many(4, group="a")
    settled(api)
    api.cancel({"id": jobs[0]})
    worker.does(jobs[1])
    api.fail(worker.takes(jobs[2]), retry_after_seconds=3600)
    api.cancel({"id": jobs[2]})
    worker.does(jobs[3])


def test_when_the_one_whose_turn_it_is_expires_unbegun_the_next_has_it(
    api: Api, db: TestDatabase, worker: Worker
) -> None:
    first = api.enqueue(group="a", expires_at=db.instant(3600))
    second = api.enqueue(group="a")
    settled(api)
    db.execute("UPDATE jobs SET expires_at = now() - interval '1 minute' WHERE id = $1", first["id"])
    worker.does(second)


def test_purging_what_waits_frees_the_turns(api: Api, worker: Worker) -> None:
    api.enqueue_many(2, group="a")
    settled(api)
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    worker.does(api.enqueue(group="a"))


def test_an_initial_delay_does_not_hold_the_group_back(api: Api, db: TestDatabase, worker: Worker) -> None:
    delayed = api.enqueue(group="a", delay_seconds=3600)
    first, second, third = api.enqueue_many(3, group="a")
    held = worker.takes(first)
    db.age(delayed["id"], 3600)
    wait_until(lambda: api.job(delayed["id"])["state"] == "ready")
    assert worker.gets_nothing()
    api.complete(held)
    worker.does(delayed, second, third)


def test_a_waiting_job_that_is_put_off_lets_the_others_pass(api: Api, db: TestDatabase, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    settled(api)
    api.change({"id": first}, run_at=db.instant(3600))
    held = worker.takes(second)
    api.change({"id": first}, run_at=db.instant(-1))
    api.complete(held)
    worker.does(first, third)


def test_a_retry_that_is_changed_to_now_is_next(api: Api, db: TestDatabase, worker: Worker) -> None:
    first, second = api.enqueue_many(2, group="a")
    api.fail(worker.takes(first), retry_after_seconds=3600)
    api.change({"id": first}, run_at=db.instant(-1))
    worker.does(first, second)


def test_a_retry_that_is_put_off_by_hand_still_holds_back_those_behind_it(
    api: Api, db: TestDatabase, worker: Worker
) -> None:
    first, second = api.enqueue_many(2, group="a")
    api.fail(worker.takes(first), retry_after_seconds=3600)
    api.change({"id": first}, run_at=db.instant(7200))
    assert worker.gets_nothing()
    db.age(first, 7200)
    worker.does(first, second)


def test_changing_anything_else_keeps_the_turn(api: Api, worker: Worker) -> None:
    first, second = api.enqueue_many(2, group="a")
    settled(api)
    api.change({"id": first}, priority=-5, tags=["late"])
    worker.does(first, second)


def test_priorities_do_not_break_it(api: Api, worker: Worker) -> None:
    jobs = [api.enqueue(group="a", priority=priority) for priority in (-1, 9, 0, 5)]
    worker.does(*jobs)


def test_priorities_decide_between_groups(api: Api, worker: Worker) -> None:
    low, high = api.enqueue(group="a", priority=1), api.enqueue(group="b", priority=2)
    settled(api)
    worker.does(high, low)


def test_a_job_that_waits_for_another_takes_its_place_when_it_may(api: Api, worker: Worker) -> None:
    parent = api.enqueue(job_type="parent")
    child = api.enqueue(group="a", depends_on=[parent["id"]])
    first, second = api.enqueue_many(2, group="a")
    held = worker.takes(first, job_types=["test"])
    worker.does(parent)
    wait_until(lambda: api.job(child["id"])["state"] == "ready")
    assert worker.gets_nothing()
    api.complete(held)
    worker.does(child, second)


def test_a_unique_job_that_is_replaced_keeps_its_place(api: Api, worker: Worker) -> None:
    first = api.enqueue(group="a", unique={"key": "k", "on_duplicate": "replace"})
    second = api.enqueue(group="a")
    settled(api)
    body = {"queue": api.queue, "job_type": "test", "payload": 2, "unique": {"key": "k", "on_duplicate": "replace"}}
    assert api.post("/jobs", body)["id"] == first["id"]
    held = worker.takes(first)
    assert held["payload"] == 2
    api.complete(held)
    worker.does(second)


def test_groups_do_not_wait_for_each_other(api: Api) -> None:
    firsts = [api.enqueue_many(3, group=group)[0] for group in "abc"]
    settled(api)
    assert sorted(ids(api.claim(max_jobs=9)["jobs"])) == sorted(firsts)


def test_jobs_without_a_group_are_not_limited(api: Api) -> None:
    api.enqueue_many(4)
    assert len(api.claim(max_jobs=9)["jobs"]) == 4


def test_in_several_lanes_every_group_keeps_its_order(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=1, lanes=4)
    groups = [f"g{number}" for number in range(6)]
    wanted = {group: api.enqueue_many(4, group=group) for group in groups}
    done: dict[str, list[str]] = {group: [] for group in groups}
    for turn in range(35):
        job = worker.take()
        if turn % 3 == 2:
            api.release(job)
        else:
            done[job["group"]].append(job["id"])
            api.complete(job)
    assert done == wanted


def test_workers_of_two_brokers_keep_it(api: Api, second: Api, background: Background) -> None:
    wanted = {group: api.enqueue_many(12, group=group) for group in "abc"}
    done: dict[str, list[str]] = {group: [] for group in wanted}
    running: list[str] = []

    def work(at: Api) -> None:
        while sum(map(len, done.values())) < 36:
            for job in at.claim(max_jobs=2, wait_seconds=0.2)["jobs"]:
                assert job["group"] not in running
                running.append(job["group"])
                again = job["deliveries"] == 1 and len(done[job["group"]]) % 3 == 0
                done[job["group"]] += [] if again else [job["id"]]
                running.remove(job["group"])
                at.fail(job, retry_after_seconds=0) if again else at.complete(job)

    background.together(*[partial(work, at) for at in (api, second) * 3])
    assert done == wanted


def test_one_that_was_replayed_comes_before_a_younger_one_that_nobody_has_begun(api: Api, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    held = worker.takes(first)
    api.fail(held, retryable=False)
    wait_until(lambda: "group_at_limit" not in {one["code"] for one in api.get(f"/jobs/{second}/explain")["reasons"]})
    api.post(f"/dead-letters/{first}/replay")
    wait_until(lambda: "group_at_limit" in {one["code"] for one in api.get(f"/jobs/{second}/explain")["reasons"]})
    for job_id in (first, second, third):
        api.complete(worker.takes(job_id))
