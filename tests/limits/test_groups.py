"""max_running_per_group: more than one at a time, put on queues in use and taken off them, and what waiting jobs look like meanwhile."""

from collections import Counter
from functools import partial

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire, Worker, ids, settled
from tests.polls import Background, parked


def take_all(api: Api) -> list[Json]:
    """Everything that can be had, when all has been decided."""
    settled(api)
    jobs: list[Json] = api.claim(max_jobs=100)["jobs"]
    return jobs


# More than one


def test_so_many_of_a_group_run_at_once_the_oldest_first(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=2)
    jobs = api.enqueue_many(4, group="a")
    first, second = take_all(api)
    assert ids([first, second]) == jobs[:2]
    api.complete(second)
    worker.takes(jobs[2])
    assert worker.gets_nothing()


def test_every_group_has_its_own_places(api: Api) -> None:
    api.configure(max_running_per_group=2)
    for group in "abc":
        api.enqueue_many(3, group=group)
    api.enqueue_many(3)
    assert Counter(job.get("group") for job in take_all(api)) == {"a": 2, "b": 2, "c": 2, None: 3}


@pytest.mark.parametrize("verb", ["fail", "snooze"])
def test_a_job_that_is_put_off_gives_its_place_to_others(api: Api, db: TestDatabase, worker: Worker, verb: str) -> None:
    api.configure(max_running_per_group=2)
    jobs = api.enqueue_many(4, group="a")
    first, second = take_all(api)
    api.fail(first, retry_after_seconds=3600) if verb == "fail" else api.snooze(first, 3600)
    worker.takes(jobs[2])
    db.age(jobs[0], 3600)
    wait_until(lambda: api.job(jobs[0])["state"] == "ready")
    assert worker.gets_nothing()
    api.complete(second)
    worker.takes(jobs[0])


def test_a_job_that_comes_back_at_once_keeps_its_place(api: Api, worker: Worker, expire: Expire) -> None:
    api.configure(max_running_per_group=2)
    jobs = api.enqueue_many(3, group="a")
    first, _ = take_all(api)
    api.release(first)
    first = worker.takes(jobs[0])
    expire(first)
    worker.takes(jobs[0])
    assert worker.gets_nothing()


def test_workers_of_two_brokers_never_exceed_it(
    api: Api, second: Api, background: Background, db: TestDatabase
) -> None:
    api.configure(max_running_per_group=2)
    api.batch(*[{"group": f"g{number % 3}"} for number in range(60)])
    done: list[str] = []

    def work(at: Api) -> None:
        while len(done) < 60:
            taken = at.claim(max_jobs=2, wait_seconds=0.2)["jobs"]
            assert not db.rows(
                "SELECT group_key FROM jobs WHERE state = 'running' GROUP BY group_key HAVING count(*) > 2"
            )
            for number, job in enumerate(taken):
                at.release(job) if number and len(done) % 5 == 0 else at.complete(job)
            done.extend(job["id"] for number, job in enumerate(taken) if api.job(job["id"])["state"] == "completed")

    background.together(*[partial(work, at) for at in (api, second) * 3])
    assert len(set(done)) == 60


def test_with_max_running_both_hold(api: Api) -> None:
    api.configure(max_running=3, max_running_per_group=2)
    api.batch(*[{"group": group} for group in "aaabbb"])
    assert sorted(Counter(job["group"] for job in take_all(api)).values()) == [1, 2]
    assert api.claim(max_jobs=9)["jobs"] == []


# On queues in use


def test_put_on_a_queue_in_use_it_counts_what_runs(api: Api, worker: Worker) -> None:
    jobs = api.enqueue_many(5, group="a")
    first, second = api.claim(max_jobs=2)["jobs"]
    api.configure(max_running_per_group=1)
    assert worker.gets_nothing()
    api.complete(first)
    assert worker.gets_nothing()
    api.complete(second)
    worker.does(*jobs[2:])


def test_jobs_that_ran_before_it_was_put_on_do_not_run_together_again(api: Api, worker: Worker) -> None:
    jobs = api.enqueue_many(4, group="a")
    held = api.claim(max_jobs=3)["jobs"]
    api.configure(max_running_per_group=1)
    for job in held:
        api.release(job)
    assert ids(take_all(api)) == jobs[:1]


def test_one_that_ran_before_it_was_put_on_keeps_its_turn_over_a_retry(
    api: Api, worker: Worker, db: TestDatabase
) -> None:
    jobs = api.enqueue_many(3, group="a")
    held = api.claim_one()
    api.configure(max_running_per_group=1)
    api.fail(held, retry_after_seconds=3600)
    assert worker.gets_nothing()
    db.age(jobs[0], 3600)
    worker.does(*jobs)


@pytest.mark.parametrize(
    "before", [{"max_running_per_group": 3}, {"fair": True}, {"fair": True, "max_running_per_group": 2}], ids=str
)
def test_lowered_it_holds_for_those_that_could_have_begun(api: Api, before: Json) -> None:
    api.configure(**before)
    jobs = {group: api.enqueue_many(4, group=group) for group in "ab"}
    settled(api)
    api.configure(max_running_per_group=1)
    assert sorted(ids(take_all(api))) == sorted([jobs["a"][0], jobs["b"][0]])


def test_removed_and_put_on_again_it_holds(api: Api) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    api.fail(Worker(api).takes(jobs[0]), retry_after_seconds=3600)
    api.configure()
    held = Worker(api).takes(jobs[1])
    api.configure(max_running_per_group=1)
    api.post(f"/jobs/{jobs[0]}/run-now")
    assert Worker(api).gets_nothing()
    api.complete(held)
    Worker(api).does(jobs[0], jobs[2])


def test_raised_it_lets_more_begin(lone: Api, background: Background) -> None:
    lone.configure(max_running_per_group=1)
    jobs = lone.enqueue_many(4, group="a")
    Worker(lone).takes(jobs[0])
    polls = background.claims(2, lone)
    wait_until(lambda: parked(lone.http) == 2)
    lone.configure(max_running_per_group=3)
    assert sorted(ids([job for poll in polls for job in poll.result(20)["jobs"]])) == jobs[1:3]


def test_removed_everybody_who_waited_may_begin(lone: Api, background: Background) -> None:
    lone.configure(max_running_per_group=1)
    jobs = lone.enqueue_many(6, group="a")
    Worker(lone).takes(jobs[0])
    poll = background.claim(lone)
    wait_until(lambda: parked(lone.http) == 1)
    lone.configure()
    taken = poll.result(20)["jobs"]
    while len(taken) < 5:
        taken += lone.claim(max_jobs=9, wait_seconds=20)["jobs"]
    assert sorted(ids(taken)) == jobs[1:]


def test_put_on_while_producers_and_workers_are_busy_nothing_is_stuck_or_doubled(
    api: Api, second: Api, background: Background
) -> None:
    done: list[str] = []

    def produce(at: Api) -> None:
        for number in range(25):
            at.enqueue(group=f"g{number % 2}", job_type="busy")

    def work(at: Api) -> None:
        while len(done) < 50:
            for job in at.claim(max_jobs=3, wait_seconds=0.2)["jobs"]:
                at.complete(job)
                done.append(job["id"])

    def configure() -> None:
        for config in (
            {"max_running_per_group": 1},
            {"fair": True},
            {},
            {"max_running": 2, "max_running_per_group": 1},
        ) * 3:
            api.configure(**config)

    background.together(
        partial(produce, api), partial(produce, second), partial(work, api), partial(work, second), configure
    )
    assert len(set(done)) == len(done) == 50


def test_a_job_that_was_on_its_way_when_it_was_put_on_is_not_forgotten(
    api: Api, db: TestDatabase, background: Background
) -> None:
    """Its producer had decided that it need not wait, and could not store it yet."""
    api.enqueue(job_type="other")
    with db.uncommitted("LOCK TABLE keys IN EXCLUSIVE MODE"):
        late = background.submit(api.enqueue, group="a", unique={"key": "k"})
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
        api.configure(max_running_per_group=1)
        settled(api)
    Worker(api).takes(late.result(20), job_types=["test"])


# What they look like


def test_a_job_that_waits_for_its_turn_is_ready_for_everybody(api: Api) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    settled(api)
    assert [api.job(job)["state"] for job in jobs] == ["ready"] * 3
    assert ids(api.get("/jobs", queue=api.queue, state="ready", order="asc")["items"]) == jobs
    assert ids(api.get("/jobs", queue=api.queue, group="a", order="asc")["items"]) == jobs
    assert api.counts()["ready"] == 3
    assert api.enqueue(group="a")["state"] == "ready"


def test_counts_stay_exact_as_turns_come_and_go(api: Api, worker: Worker, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(5, group="a")
    api.release(worker.takes(jobs[0]))
    api.fail(worker.takes(jobs[0]), retry_after_seconds=3600)
    assert api.counts() == {"scheduled": 1, "ready": 4}
    db.age(jobs[0], 3600)
    api.complete(worker.takes(jobs[0]))
    api.configure()
    assert len(take_all_of(api, 4)) == 4
    assert api.counts() == {"running": 4, "completed": 1}


def take_all_of(api: Api, count: int) -> list[Json]:
    taken: list[Json] = []
    while len(taken) < count:
        taken += api.claim(max_jobs=count, wait_seconds=20)["jobs"]
    return taken


def test_a_job_that_waits_for_its_turn_can_be_changed_and_cancelled(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(4, group="a")
    assert api.change({"id": jobs[1]}, payload={"n": 1}, priority=3)["state"] == "ready"
    assert api.cancel({"id": jobs[2]})["state"] == "cancelled"
    api.complete(worker.takes(jobs[0]))
    assert worker.takes(jobs[1])["payload"] == {"n": 1}
    assert api.post("/jobs/cancel", {"filter": {"queue": api.queue, "state": "ready"}})["cancelled"] == 1
    assert api.counts() == {"completed": 1, "running": 1, "cancelled": 2}


def test_a_job_that_waits_for_its_turn_can_be_put_off_and_hurried(api: Api, db: TestDatabase, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    held = worker.takes(jobs[0])
    assert api.change({"id": jobs[1]}, run_at=db.instant(3600))["state"] == "scheduled"
    assert api.post(f"/jobs/{jobs[1]}/run-now")["state"] == "ready"
    api.complete(held)
    worker.does(jobs[1], jobs[2])
