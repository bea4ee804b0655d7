"""max_running_per_group = 1: the jobs of a group run one after the other, oldest first."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.api.concurrency.conftest import Expire, Worker, ids, wait_until_admitted
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background, parked_polls

EndRun = Callable[[Api, Json, Expire], object]

REQUEUES: dict[str, EndRun] = {
    "release": lambda api, job, expire: api.release(job),
    "failure": lambda api, job, expire: api.fail(job, retry_after_seconds=0),
    "snooze": lambda api, job, expire: api.snooze(job, 0),
    "expiry": lambda api, job, expire: expire(job),
}
DELAYS: dict[str, EndRun] = {
    "failure": lambda api, job, expire: api.fail(job, retry_after_seconds=3600),
    "snooze": lambda api, job, expire: api.snooze(job, 3600),
}
ENDS: dict[str, EndRun] = {
    "complete": lambda api, job, expire: api.complete(job),
    "dead letter": lambda api, job, expire: api.fail(job, retryable=False),
    "cancel": lambda api, job, expire: (api.cancel(job, status=202), api.release(job)),
}


@pytest.fixture(autouse=True)
def configured(api: Api) -> None:
    api.configure(max_running_per_group=1)


def test_jobs_of_a_strict_group_run_one_at_a_time_in_order(api: Api, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    held = worker.claim_expected(first)
    assert worker.finds_nothing()
    api.complete(held)
    worker.complete_in_order(second, third)


@pytest.mark.parametrize("requeue", REQUEUES.values(), ids=REQUEUES)
def test_requeued_job_of_a_strict_group_is_next_again(
    api: Api, worker: Worker, expire: Expire, requeue: EndRun
) -> None:
    jobs = api.enqueue_many(3, group="a")
    requeue(api, worker.claim_expected(jobs[0]), expire)
    requeue(api, worker.claim_expected(jobs[0]), expire)
    worker.complete_in_order(*jobs)


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
def test_delayed_job_blocks_its_strict_group(
    api: Api, worker: Worker, expire: Expire, db: TestDatabase, delay: EndRun
) -> None:
    jobs = api.enqueue_many(3, group="a")
    delay(api, worker.claim_expected(jobs[0]), expire)
    assert worker.finds_nothing()
    db.age(jobs[0], 3600)
    worker.complete_in_order(*jobs)


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
def test_delayed_job_of_a_strict_group_can_be_run_now(api: Api, worker: Worker, expire: Expire, delay: EndRun) -> None:
    jobs = api.enqueue_many(3, group="a")
    delay(api, worker.claim_expected(jobs[0]), expire)
    api.post(f"/jobs/{jobs[0]}/run-now")
    worker.complete_in_order(*jobs)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_end_of_a_job_admits_the_next_and_wakes_a_poll(
    isolated_api: Api, background: Background, expire: Expire, end: EndRun
) -> None:
    isolated_api.configure(max_running_per_group=1)
    first, second = isolated_api.enqueue_many(2, group="a")
    held = Worker(isolated_api).claim_expected(first)
    poll = background.claim(isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 1)
    end(isolated_api, held, expire)
    assert ids(poll.result(20)["jobs"]) == [second]


def test_late_completion_admits_the_next_job(api: Api, worker: Worker, expire: Expire) -> None:
    first, second = api.enqueue_many(2, group="a")
    late = worker.claim_expected(first)
    expire(late)
    api.complete(late)
    worker.complete_in_order(second)


def test_replayed_dead_letter_goes_before_younger_jobs(api: Api, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    dead = worker.claim_expected(first)
    api.fail(dead, retryable=False)
    running = worker.claim_expected(second)
    api.replay(dead)
    assert worker.finds_nothing()
    api.complete(running)
    worker.complete_in_order(first, third)


def test_cancelling_the_admitted_job_admits_the_next(api: Api, worker: Worker) -> None:
    jobs = api.enqueue_many(4, group="a")
    wait_until_admitted(api)
    api.cancel({"id": jobs[0]})
    worker.complete_in_order(jobs[1])
    api.fail(worker.claim_expected(jobs[2]), retry_after_seconds=3600)
    api.cancel({"id": jobs[2]})
    worker.complete_in_order(jobs[3])


def test_missed_start_deadline_of_the_admitted_job_admits_the_next(api: Api, db: TestDatabase, worker: Worker) -> None:
    first = api.enqueue(group="a", expires_at=db.instant(3600))
    second = api.enqueue(group="a")
    wait_until_admitted(api)
    db.execute("UPDATE jobs SET expires_at = now() - interval '1 minute' WHERE id = $1", first["id"])
    worker.complete_in_order(second)


def test_purge_frees_admissions(api: Api, worker: Worker) -> None:
    api.enqueue_many(2, group="a")
    wait_until_admitted(api)
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    worker.complete_in_order(api.enqueue(group="a"))


def test_initial_delay_does_not_block_a_strict_group(api: Api, db: TestDatabase, worker: Worker) -> None:
    delayed = api.enqueue(group="a", delay_seconds=3600)
    first, second, third = api.enqueue_many(3, group="a")
    held = worker.claim_expected(first)
    db.age(delayed["id"], 3600)
    wait_until(lambda: api.job(delayed["id"])["state"] == "ready")
    assert worker.finds_nothing()
    api.complete(held)
    worker.complete_in_order(delayed, second, third)


def test_unstarted_job_that_is_delayed_does_not_block_its_strict_group(
    api: Api, db: TestDatabase, worker: Worker
) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    wait_until_admitted(api)
    api.change({"id": first}, run_at=db.instant(3600))
    held = worker.claim_expected(second)
    api.change({"id": first}, run_at=db.instant(-1))
    api.complete(held)
    worker.complete_in_order(first, third)


def test_retry_that_is_moved_to_now_is_next(api: Api, db: TestDatabase, worker: Worker) -> None:
    first, second = api.enqueue_many(2, group="a")
    api.fail(worker.claim_expected(first), retry_after_seconds=3600)
    api.change({"id": first}, run_at=db.instant(-1))
    worker.complete_in_order(first, second)


def test_retry_that_is_moved_further_away_still_blocks_its_strict_group(
    api: Api, db: TestDatabase, worker: Worker
) -> None:
    first, second = api.enqueue_many(2, group="a")
    api.fail(worker.claim_expected(first), retry_after_seconds=3600)
    api.change({"id": first}, run_at=db.instant(7200))
    assert worker.finds_nothing()
    db.age(first, 7200)
    worker.complete_in_order(first, second)


def test_changing_other_fields_keeps_the_admission(api: Api, worker: Worker) -> None:
    first, second = api.enqueue_many(2, group="a")
    wait_until_admitted(api)
    api.change({"id": first}, priority=-5, tags=["late"])
    worker.complete_in_order(first, second)


def test_priorities_do_not_break_strict_order(api: Api, worker: Worker) -> None:
    jobs = [api.enqueue(group="a", priority=priority) for priority in (-1, 9, 0, 5)]
    worker.complete_in_order(*jobs)


def test_priorities_order_strict_groups(api: Api, worker: Worker) -> None:
    low, high = api.enqueue(group="a", priority=1), api.enqueue(group="b", priority=2)
    wait_until_admitted(api)
    worker.complete_in_order(high, low)


def test_unblocked_child_goes_before_younger_jobs_of_its_group(api: Api, worker: Worker) -> None:
    parent = api.enqueue(job_type="parent")
    child = api.enqueue(group="a", depends_on=[parent["id"]])
    first, second = api.enqueue_many(2, group="a")
    held = worker.claim_expected(first, job_types=["test"])
    worker.complete_in_order(parent)
    wait_until(lambda: api.job(child["id"])["state"] == "ready")
    assert worker.finds_nothing()
    api.complete(held)
    worker.complete_in_order(child, second)


def test_replaced_unique_job_keeps_its_position(api: Api, worker: Worker) -> None:
    first = api.enqueue(group="a", unique={"key": "k", "on_duplicate": "replace"})
    second = api.enqueue(group="a")
    wait_until_admitted(api)
    body = {"queue": api.queue, "job_type": "test", "payload": 2, "unique": {"key": "k", "on_duplicate": "replace"}}
    assert api.post("/jobs", body)["id"] == first["id"]
    held = worker.claim_expected(first)
    assert held["payload"] == 2
    api.complete(held)
    worker.complete_in_order(second)


def test_strict_groups_are_independent(api: Api) -> None:
    firsts = [api.enqueue_many(3, group=group)[0] for group in "abc"]
    wait_until_admitted(api)
    assert sorted(ids(api.claim(max_jobs=9)["jobs"])) == sorted(firsts)


def test_jobs_without_group_are_not_limited(api: Api) -> None:
    api.enqueue_many(4)
    assert len(api.claim(max_jobs=9)["jobs"]) == 4


def test_strict_order_holds_in_a_queue_with_several_lanes(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=1, lanes=4)
    groups = [f"g{number}" for number in range(6)]
    expected = {group: api.enqueue_many(4, group=group) for group in groups}
    done: dict[str, list[str]] = {group: [] for group in groups}
    for step in range(35):
        job = worker.claim()
        if step % 3 == 2:
            api.release(job)
        else:
            done[job["group"]].append(job["id"])
            api.complete(job)
    assert done == expected


def test_strict_order_holds_with_workers_of_two_brokers(api: Api, second_api: Api, background: Background) -> None:
    expected = {group: api.enqueue_many(12, group=group) for group in "abc"}
    done: dict[str, list[str]] = {group: [] for group in expected}
    running: list[str] = []

    def work(broker_api: Api) -> None:
        while sum(map(len, done.values())) < 36:
            for job in broker_api.claim(max_jobs=2, wait_seconds=0.2)["jobs"]:
                assert job["group"] not in running
                running.append(job["group"])
                is_retried = job["deliveries"] == 1 and len(done[job["group"]]) % 3 == 0
                done[job["group"]] += [] if is_retried else [job["id"]]
                running.remove(job["group"])
                broker_api.fail(job, retry_after_seconds=0) if is_retried else broker_api.complete(job)

    background.together(*[partial(work, broker_api) for broker_api in (api, second_api) * 3])
    assert done == expected


def test_replayed_job_goes_before_a_younger_admitted_job_that_no_worker_has_started(api: Api, worker: Worker) -> None:
    first, second, third = api.enqueue_many(3, group="a")
    held = worker.claim_expected(first)
    api.fail(held, retryable=False)
    wait_until(
        lambda: "group_at_limit" not in {reason["code"] for reason in api.get(f"/jobs/{second}/explain")["reasons"]}
    )
    api.post(f"/dead-letters/{first}/replay")
    wait_until(lambda: "group_at_limit" in {reason["code"] for reason in api.get(f"/jobs/{second}/explain")["reasons"]})
    for job_id in (first, second, third):
        api.complete(worker.claim_expected(job_id))
