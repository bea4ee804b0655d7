"""max_running_per_group: limits above one, limits changed on queues in use, and pending jobs.

Strict groups (a limit of one) are tested in test_strict_order.py.
"""

from collections import Counter
from functools import partial

import pytest

from app.events import JobsClaimable
from tests.api.concurrency.conftest import Expire, Worker, ids, wait_until_admitted
from tests.api_client import Api, Json
from tests.broker import RunningBroker
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background, parked_polls


def claim_all_admitted(api: Api) -> list[Json]:
    """Claims all jobs that are admitted, once every decision is made."""
    wait_until_admitted(api)
    jobs: list[Json] = api.claim(max_jobs=100)["jobs"]
    return jobs


# Limits above one


def test_group_limit_of_two_runs_the_two_oldest_jobs(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=2)
    jobs = api.enqueue_many(4, group="a")
    first, second = claim_all_admitted(api)
    assert ids([first, second]) == jobs[:2]
    api.complete(second)
    worker.claim_expected(jobs[2])
    assert worker.finds_nothing()


def test_group_limit_applies_to_each_group_separately(api: Api) -> None:
    api.configure(max_running_per_group=2)
    for group in "abc":
        api.enqueue_many(3, group=group)
    api.enqueue_many(3)
    assert Counter(job.get("group") for job in claim_all_admitted(api)) == {"a": 2, "b": 2, "c": 2, None: 3}


@pytest.mark.parametrize("verb", ["fail", "snooze"])
def test_delayed_job_gives_its_admission_to_the_next_job(api: Api, db: TestDatabase, worker: Worker, verb: str) -> None:
    api.configure(max_running_per_group=2)
    jobs = api.enqueue_many(4, group="a")
    first, second = claim_all_admitted(api)
    api.fail(first, retry_after_seconds=3600) if verb == "fail" else api.snooze(first, 3600)
    worker.claim_expected(jobs[2])
    db.age(jobs[0], 3600)
    wait_until(lambda: api.job(jobs[0])["state"] == "ready")
    assert worker.finds_nothing()
    api.complete(second)
    worker.claim_expected(jobs[0])


def test_requeued_job_keeps_its_admission(api: Api, worker: Worker, expire: Expire) -> None:
    api.configure(max_running_per_group=2)
    jobs = api.enqueue_many(3, group="a")
    first, _ = claim_all_admitted(api)
    api.release(first)
    first = worker.claim_expected(jobs[0])
    expire(first)
    worker.claim_expected(jobs[0])
    assert worker.finds_nothing()


def test_workers_of_two_brokers_never_exceed_the_group_limit(
    api: Api, second_api: Api, background: Background, db: TestDatabase
) -> None:
    api.configure(max_running_per_group=2)
    api.batch(*[{"group": f"g{number % 3}"} for number in range(60)])
    completed: list[str] = []

    def work(broker_api: Api) -> None:
        while len(completed) < 60:
            claimed = broker_api.claim(max_jobs=2, wait_seconds=0.2)["jobs"]
            assert not db.rows(
                "SELECT group_key FROM jobs WHERE state = 'running' GROUP BY group_key HAVING count(*) > 2"
            )
            for number, job in enumerate(claimed):
                broker_api.release(job) if number and len(completed) % 5 == 0 else broker_api.complete(job)
            completed.extend(
                job["id"] for number, job in enumerate(claimed) if api.job(job["id"])["state"] == "completed"
            )

    background.together(*[partial(work, broker_api) for broker_api in (api, second_api) * 3])
    assert len(set(completed)) == 60


def test_queue_limit_and_group_limit_apply_together(api: Api) -> None:
    api.configure(max_running=3, max_running_per_group=2)
    api.batch(*[{"group": group} for group in "aaabbb"])
    assert sorted(Counter(job["group"] for job in claim_all_admitted(api)).values()) == [1, 2]
    assert api.claim(max_jobs=9)["jobs"] == []


# Limits changed on queues in use


def test_new_group_limit_counts_jobs_that_already_run(api: Api, worker: Worker) -> None:
    jobs = api.enqueue_many(5, group="a")
    first, second = api.claim(max_jobs=2)["jobs"]
    api.configure(max_running_per_group=1)
    assert worker.finds_nothing()
    api.complete(first)
    assert worker.finds_nothing()
    api.complete(second)
    worker.complete_in_order(*jobs[2:])


def test_jobs_that_ran_before_the_group_limit_are_redelivered_one_at_a_time(api: Api, worker: Worker) -> None:
    jobs = api.enqueue_many(4, group="a")
    held = api.claim(max_jobs=3)["jobs"]
    api.configure(max_running_per_group=1)
    for job in held:
        api.release(job)
    assert ids(claim_all_admitted(api)) == jobs[:1]


def test_job_that_ran_before_the_group_limit_keeps_its_admission_over_a_retry(
    api: Api, worker: Worker, db: TestDatabase
) -> None:
    jobs = api.enqueue_many(3, group="a")
    held = api.claim_one()
    api.configure(max_running_per_group=1)
    api.fail(held, retry_after_seconds=3600)
    assert worker.finds_nothing()
    db.age(jobs[0], 3600)
    worker.complete_in_order(*jobs)


@pytest.mark.parametrize(
    "before", [{"max_running_per_group": 3}, {"fair": True}, {"fair": True, "max_running_per_group": 2}], ids=str
)
def test_lowered_group_limit_revokes_unstarted_admissions(api: Api, before: Json) -> None:
    api.configure(**before)
    jobs = {group: api.enqueue_many(4, group=group) for group in "ab"}
    wait_until_admitted(api)
    api.configure(max_running_per_group=1)
    assert sorted(ids(claim_all_admitted(api))) == sorted([jobs["a"][0], jobs["b"][0]])


def test_group_limit_holds_after_it_was_removed_and_set_again(api: Api) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    api.fail(Worker(api).claim_expected(jobs[0]), retry_after_seconds=3600)
    api.configure()
    held = Worker(api).claim_expected(jobs[1])
    api.configure(max_running_per_group=1)
    api.post(f"/jobs/{jobs[0]}/run-now")
    assert Worker(api).finds_nothing()
    api.complete(held)
    Worker(api).complete_in_order(jobs[0], jobs[2])


def test_raised_group_limit_admits_more_jobs(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(max_running_per_group=1)
    jobs = isolated_api.enqueue_many(4, group="a")
    Worker(isolated_api).claim_expected(jobs[0])
    polls = background.claims(2, isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 2)
    isolated_api.configure(max_running_per_group=3)
    assert sorted(ids([job for poll in polls for job in poll.result(20)["jobs"]])) == jobs[1:3]


def test_removed_group_limit_admits_all_pending_jobs(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(max_running_per_group=1)
    jobs = isolated_api.enqueue_many(6, group="a")
    Worker(isolated_api).claim_expected(jobs[0])
    poll = background.claim(isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 1)
    isolated_api.configure()
    claimed = poll.result(20)["jobs"]
    while len(claimed) < 5:
        claimed += isolated_api.claim(max_jobs=9, wait_seconds=20)["jobs"]
    assert sorted(ids(claimed)) == jobs[1:]


@pytest.mark.slow
def test_changing_limits_under_load_neither_blocks_nor_duplicates_jobs(
    api: Api, second_api: Api, background: Background
) -> None:
    completed: list[str] = []

    def produce(broker_api: Api) -> None:
        for number in range(25):
            broker_api.enqueue(group=f"g{number % 2}", job_type="busy")

    def work(broker_api: Api) -> None:
        while len(completed) < 50:
            for job in broker_api.claim(max_jobs=3, wait_seconds=0.2)["jobs"]:
                broker_api.complete(job)
                completed.append(job["id"])

    def configure() -> None:
        for config in (
            {"max_running_per_group": 1},
            {"fair": True},
            {},
            {"max_running": 2, "max_running_per_group": 1},
        ) * 3:
            api.configure(**config)

    background.together(
        partial(produce, api), partial(produce, second_api), partial(work, api), partial(work, second_api), configure
    )
    assert len(set(completed)) == len(completed) == 50


@pytest.mark.slow
def test_job_being_inserted_while_the_group_limit_is_set_is_not_forgotten(
    api: Api, db: TestDatabase, background: Background
) -> None:
    """The broker had decided that the job is ready, and could not insert it yet."""
    api.enqueue(job_type="other")
    with db.uncommitted("LOCK TABLE deduplication_keys IN EXCLUSIVE MODE"):
        late = background.submit(api.enqueue, group="a", unique={"key": "k"})
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
        api.configure(max_running_per_group=1)
        wait_until_admitted(api)
    Worker(api).claim_expected(late.result(20), job_types=["test"])


# Pending jobs


def test_pending_job_is_shown_as_ready(api: Api) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    wait_until_admitted(api)
    assert [api.job(job)["state"] for job in jobs] == ["ready"] * 3
    assert ids(api.get("/jobs", queue=api.queue, state="ready", order="asc")["items"]) == jobs
    assert ids(api.get("/jobs", queue=api.queue, group="a", order="asc")["items"]) == jobs
    assert api.counts()["ready"] == 3
    assert api.enqueue(group="a")["state"] == "ready"


def test_counts_stay_exact_while_admissions_change(api: Api, worker: Worker, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(5, group="a")
    api.release(worker.claim_expected(jobs[0]))
    api.fail(worker.claim_expected(jobs[0]), retry_after_seconds=3600)
    assert api.counts() == {"scheduled": 1, "ready": 4}
    db.age(jobs[0], 3600)
    api.complete(worker.claim_expected(jobs[0]))
    api.configure()
    assert len(claim_until(api, 4)) == 4
    assert api.counts() == {"running": 4, "completed": 1}


def claim_until(api: Api, count: int) -> list[Json]:
    claimed: list[Json] = []
    while len(claimed) < count:
        claimed += api.claim(max_jobs=count, wait_seconds=20)["jobs"]
    return claimed


def test_pending_job_can_be_changed_and_cancelled(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(4, group="a")
    assert api.change({"id": jobs[1]}, payload={"n": 1}, priority=3)["state"] == "ready"
    assert api.cancel({"id": jobs[2]})["state"] == "cancelled"
    api.complete(worker.claim_expected(jobs[0]))
    assert worker.claim_expected(jobs[1])["payload"] == {"n": 1}
    assert api.post("/jobs/cancel", {"filter": {"queue": api.queue, "state": "ready"}})["cancelled"] == 1
    assert api.counts() == {"completed": 1, "running": 1, "cancelled": 2}


def test_pending_job_can_be_delayed_and_run_now(api: Api, db: TestDatabase, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    held = worker.claim_expected(jobs[0])
    assert api.change({"id": jobs[1]}, run_at=db.instant(3600))["state"] == "scheduled"
    assert api.post(f"/jobs/{jobs[1]}/run-now")["state"] == "ready"
    api.complete(held)
    worker.complete_in_order(jobs[1], jobs[2])


def test_removed_limit_wakes_a_poller_for_each_job_that_becomes_ready(api: Api, broker: RunningBroker) -> None:
    assert broker.broker_services is not None
    api.configure(max_running_per_group=1)
    api.enqueue_many(4, group="a")
    wait_until_admitted(api)
    published: list[JobsClaimable] = []
    broker.broker_services.events.subscribe(JobsClaimable, published.append)
    api.configure()
    wait_until(lambda: published)
    assert [event.count for event in published] == [3]
