"""fair: groups take turns, however many jobs each of them has."""

from collections import Counter

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire, Worker, ids, settled
from tests.polls import Background, parked


def groups(jobs: list[Json]) -> str:
    return "".join(job.get("group", "-") for job in jobs)


def done_in_turn(api: Api, count: int) -> str:
    """The groups of the next jobs, each done before the next is asked for, and when all has been decided."""
    done = []
    for _ in range(count):
        settled(api)
        done.append(api.claim_one(wait_seconds=20))
        api.complete(done[-1])
    return groups(done)


def test_groups_take_turns(api: Api) -> None:
    api.configure(fair=True)
    for group, count in (("a", 4), ("b", 2), ("c", 3)):
        api.enqueue_many(count, group=group)
    assert done_in_turn(api, 9) == "abcabcaca"


def test_one_claim_of_many_takes_one_of_each_group_first(api: Api) -> None:
    api.configure(fair=True)
    for group, count in (("a", 5), ("b", 3)):
        api.enqueue_many(count, group=group)
    settled(api)
    assert groups(api.claim(max_jobs=5)["jobs"]) == "ababa"


def test_within_a_group_the_oldest_is_first(api: Api) -> None:
    api.configure(fair=True)
    first, second = api.enqueue_many(20, group="a"), api.enqueue_many(20, group="b")
    settled(api)
    taken = api.claim(max_jobs=40)["jobs"]
    assert ids(taken) == [job for both in zip(first, second, strict=True) for job in both]


def test_jobs_without_a_group_are_a_group_too(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue_many(3)
    api.enqueue_many(2, group="a")
    assert done_in_turn(api, 5) == "-a-a-"


def test_a_group_that_comes_late_is_served_in_the_round_that_is_next(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue_many(30, group="a")
    assert done_in_turn(api, 10) == "a" * 10
    api.enqueue_many(3, group="b")
    served = done_in_turn(api, 8)
    assert served.count("b") == 3
    assert served.index("b") <= 2


def test_a_group_that_has_been_away_is_owed_nothing(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue(group="b")
    api.enqueue_many(20, group="a")
    assert sorted(done_in_turn(api, 11)) == ["a"] * 10 + ["b"]
    api.enqueue_many(6, group="b")
    assert Counter(done_in_turn(api, 12)) == {"a": 6, "b": 6}


def test_a_higher_priority_comes_first_and_takes_turns_of_its_own(api: Api) -> None:
    api.configure(fair=True)
    api.enqueue_many(3, group="a")
    api.enqueue_many(1, group="b")
    api.enqueue_many(3, group="c", priority=5)
    api.enqueue_many(1, group="b", priority=5)
    assert done_in_turn(api, 8) == "cbccabaa"


def test_with_a_limit_a_busy_group_does_not_keep_the_others_waiting(api: Api) -> None:
    """Its next job comes in when the last has ended, and goes behind those that were there before."""
    api.configure(fair=True, max_running_per_group=1)
    for group, count in (("a", 8), ("b", 3), ("c", 3)):
        api.enqueue_many(count, group=group)
    assert done_in_turn(api, 14) == "abcabcabcaaaaa"


def test_with_a_limit_of_more_too(api: Api) -> None:
    api.configure(fair=True, max_running_per_group=2)
    for group, count in (("a", 12), ("b", 4)):
        api.enqueue_many(count, group=group)
    served = done_in_turn(api, 8)
    assert served.count("b") >= 3


def test_with_a_limit_no_group_has_more_than_that(api: Api, worker: Worker) -> None:
    api.configure(fair=True, max_running_per_group=2)
    for group in "ab":
        api.enqueue_many(5, group=group)
    settled(api)
    assert groups(api.claim(max_jobs=9)["jobs"]) == "abab"
    assert worker.gets_nothing()


def test_with_a_limit_of_one_order_is_strict_too(api: Api, worker: Worker, expire: Expire, db: TestDatabase) -> None:
    api.configure(fair=True, max_running_per_group=1)
    jobs = api.enqueue_many(3, group="a")
    api.release(worker.takes(jobs[0]))
    expire(worker.takes(jobs[0]))
    api.fail(worker.takes(jobs[0]), retry_after_seconds=3600)
    assert worker.gets_nothing()
    db.age(jobs[0], 3600)
    worker.does(*jobs)


def test_a_job_that_comes_back_at_once_is_not_sent_to_the_end(api: Api, worker: Worker) -> None:
    api.configure(fair=True)
    jobs = api.enqueue_many(5, group="a")
    settled(api)
    api.release(worker.takes(jobs[0]))
    worker.does(*jobs)


def test_a_retry_is_served_again(api: Api, db: TestDatabase) -> None:
    api.configure(fair=True)
    jobs = api.enqueue_many(3, group="a")
    settled(api)
    api.fail(api.claim_one(), retry_after_seconds=3600)
    db.age(jobs[0], 3600)
    wait_until(lambda: api.job(jobs[0])["state"] == "ready")
    assert done_in_turn(api, 3) == "aaa"
    assert api.counts()["completed"] >= 3


@pytest.mark.parametrize(
    ("config", "fields"),
    [({"fair": True}, {"group": "a"}), ({"fair": True, "max_running_per_group": 1}, {})],
    ids=["of a group", "of none, where groups are limited"],
)
def test_more_jobs_than_are_numbered_at_once_all_come(api: Api, config: Json, fields: Json) -> None:
    api.configure(**config)
    for count in (1000, 1000, 500):
        api.enqueue_many(count, **fields)
    taken = 0
    while taken < 2500:
        taken += len(api.claim(max_jobs=1000, wait_seconds=20)["jobs"])
    assert api.counts() == {"running": 2500}


def test_a_poll_is_woken_by_a_job_of_any_group(lone: Api, background: Background) -> None:
    lone.configure(fair=True)
    grouped: list[Json] = [{"group": "a"}, {}]
    for fields in grouped:
        poll = background.claim(lone)
        wait_until(lambda: parked(lone.http) == 1)
        job = lone.enqueue(**fields)
        assert ids(poll.result(20)["jobs"]) == [job["id"]]


def test_switched_on_and_off_while_jobs_wait(api: Api, worker: Worker) -> None:
    api.enqueue_many(4, group="a")
    api.enqueue_many(2, group="b")
    api.enqueue_many(2)
    api.configure(fair=True)
    assert sorted(groups(worker.does_all(3))) == ["-", "a", "b"]
    api.configure()
    taken: list[Json] = []
    while len(taken) < 5:
        taken += api.claim(max_jobs=9, wait_seconds=20)["jobs"]
    assert Counter(groups(taken)) == {"a": 3, "b": 1, "-": 1}


def test_with_max_running_slots_go_round_the_groups(api: Api) -> None:
    api.configure(fair=True, max_running=2)
    for group in "abc":
        api.enqueue_many(2, group=group)
    settled(api)
    assert groups(api.claim(max_jobs=9)["jobs"]) == "ab"
