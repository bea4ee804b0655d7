"""fair: groups are served round-robin, however many jobs each of them has."""

from collections import Counter

import pytest

from tests.api.concurrency.conftest import Expire, Worker, ids, wait_until_admitted
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background, parked_polls


def groups_of(jobs: list[Json]) -> str:
    return "".join(job.get("group", "-") for job in jobs)


def complete_one_by_one(api: Api, count: int) -> str:
    """Completes jobs one by one, each after all admissions are made. Returns their groups."""
    completed = []
    for _ in range(count):
        wait_until_admitted(api)
        completed.append(api.claim_one(wait_seconds=20))
        api.complete(completed[-1])
    return groups_of(completed)


def test_fair_queue_serves_groups_round_robin(api: Api) -> None:
    api.configure(fair=True)
    for group, count in (("a", 4), ("b", 2), ("c", 3)):
        api.enqueue_many(count, group=group)
    assert complete_one_by_one(api, 9) == "abcabcaca"


def test_claim_of_many_jobs_alternates_between_groups(api: Api) -> None:
    api.configure(fair=True)
    for group, count in (("a", 5), ("b", 3)):
        api.enqueue_many(count, group=group)
    wait_until_admitted(api)
    assert groups_of(api.claim(max_jobs=5)["jobs"]) == "ababa"


def test_fair_queue_serves_the_oldest_job_of_a_group_first(api: Api) -> None:
    api.configure(fair=True)
    first, second = api.enqueue_many(20, group="a"), api.enqueue_many(20, group="b")
    wait_until_admitted(api)
    claimed = api.claim(max_jobs=40)["jobs"]
    assert ids(claimed) == [job for both in zip(first, second, strict=True) for job in both]


def test_jobs_without_group_form_a_group_in_a_fair_queue(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue_many(3)
    api.enqueue_many(2, group="a")
    assert complete_one_by_one(api, 5) == "-a-a-"


def test_new_group_is_served_in_the_next_pass(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue_many(30, group="a")
    assert complete_one_by_one(api, 10) == "a" * 10
    api.enqueue_many(3, group="b")
    order = complete_one_by_one(api, 8)
    assert order.count("b") == 3
    assert order.index("b") <= 2


def test_returning_group_gets_no_extra_passes(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue(group="b")
    api.enqueue_many(20, group="a")
    assert sorted(complete_one_by_one(api, 11)) == ["a"] * 10 + ["b"]
    api.enqueue_many(6, group="b")
    assert Counter(complete_one_by_one(api, 12)) == {"a": 6, "b": 6}


def test_group_whose_next_job_comes_after_its_last_has_ended_gets_no_second_job_in_a_pass(
    api: Api, worker: Worker
) -> None:
    api.configure(fair=True)
    first, others = api.enqueue(group="a"), api.enqueue_many(3, group="b")
    wait_until_admitted(api)
    worker.complete_in_order(first)
    wait_until_admitted(api)  # the group has been checked while it had no pending job
    second = api.enqueue(group="a")
    wait_until_admitted(api)
    worker.complete_in_order(others[0], others[1], second, others[2])


def test_higher_priority_goes_first_and_has_its_own_passes(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue_many(3, group="a")
    api.enqueue_many(1, group="b")
    api.enqueue_many(3, group="c", priority=5)
    api.enqueue_many(1, group="b", priority=5)
    assert complete_one_by_one(api, 8) == "cbccabaa"


def test_busy_group_of_a_fair_queue_with_group_limit_does_not_starve_the_others(api: Api) -> None:
    """The next job of the busy group is admitted when the last has ended, behind the others."""
    api.configure(fair=True, max_running_per_group=1)
    for group, count in (("a", 8), ("b", 3), ("c", 3)):
        api.enqueue_many(count, group=group)
    assert complete_one_by_one(api, 14) == "abcabcabcaaaaa"


def test_busy_group_of_a_fair_queue_with_group_limit_of_two_does_not_starve_the_others(api: Api) -> None:
    api.configure(fair=True, max_running_per_group=2)
    for group, count in (("a", 12), ("b", 4)):
        api.enqueue_many(count, group=group)
    order = complete_one_by_one(api, 8)
    assert order.count("b") >= 3


def test_fair_queue_respects_the_group_limit(api: Api, worker: Worker) -> None:
    api.configure(fair=True, max_running_per_group=2)
    for group in "ab":
        api.enqueue_many(5, group=group)
    wait_until_admitted(api)
    assert groups_of(api.claim(max_jobs=9)["jobs"]) == "abab"
    assert worker.finds_nothing()


def test_fair_queue_with_group_limit_of_one_keeps_strict_order(
    api: Api, worker: Worker, expire: Expire, db: TestDatabase
) -> None:
    api.configure(fair=True, max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    api.release(worker.claim_expected(jobs[0]))
    expire(worker.claim_expected(jobs[0]))
    api.fail(worker.claim_expected(jobs[0]), retry_after_seconds=3600)
    assert worker.finds_nothing()
    db.age(jobs[0], 3600)
    worker.complete_in_order(*jobs)


def test_released_job_of_a_fair_queue_keeps_its_position(api: Api, worker: Worker) -> None:
    api.configure(fair=True)
    jobs = api.enqueue_many(5, group="a")
    wait_until_admitted(api)
    api.release(worker.claim_expected(jobs[0]))
    worker.complete_in_order(*jobs)


def test_retry_in_a_fair_queue_is_served_again(api: Api, db: TestDatabase) -> None:
    api.configure(fair=True)
    jobs = api.enqueue_many(3, group="a")
    wait_until_admitted(api)
    api.fail(api.claim_one(), retry_after_seconds=3600)
    db.age(jobs[0], 3600)
    wait_until(lambda: api.job(jobs[0])["state"] == "ready")
    assert complete_one_by_one(api, 3) == "aaa"
    assert api.counts()["completed"] >= 3


@pytest.mark.parametrize(
    ("config", "fields"),
    [({"fair": True}, {"group": "a"}), ({"fair": True, "max_running_per_group": 1}, {})],
    ids=["one group", "no group, and a group limit"],
)
def test_fair_queue_delivers_more_jobs_than_one_admission_batch(api: Api, config: Json, fields: Json) -> None:
    api.configure(**config)
    for count in (1000, 1000, 500):
        api.enqueue_many(count, **fields)
    claimed = 0
    while claimed < 2500:
        claimed += len(api.claim(max_jobs=1000, wait_seconds=20)["jobs"])
    assert api.counts() == {"running": 2500}


def test_job_of_any_group_wakes_a_poll_of_a_fair_queue(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(fair=True)
    grouped: list[Json] = [{"group": "a"}, {}]
    for fields in grouped:
        poll = background.claim(isolated_api)
        wait_until(lambda: parked_polls(isolated_api.http) == 1)
        job = isolated_api.enqueue(**fields)
        assert ids(poll.result(20)["jobs"]) == [job["id"]]


def test_fairness_can_be_switched_on_and_off_while_jobs_wait(api: Api, worker: Worker) -> None:
    api.enqueue_many(4, group="a")
    api.enqueue_many(2, group="b")
    api.enqueue_many(2)
    api.configure(fair=True)
    assert sorted(groups_of(worker.complete_any(3))) == ["-", "a", "b"]
    api.configure()
    claimed: list[Json] = []
    while len(claimed) < 5:
        claimed += api.claim(max_jobs=9, wait_seconds=20)["jobs"]
    assert Counter(groups_of(claimed)) == {"a": 3, "b": 1, "-": 1}


def test_concurrency_slots_of_a_fair_queue_alternate_between_groups(api: Api) -> None:
    api.configure(fair=True, max_running=2)
    for group in "abc":
        api.enqueue_many(2, group=group)
    wait_until_admitted(api)
    assert groups_of(api.claim(max_jobs=9)["jobs"]) == "ab"
