"""rate: no more than so many are handed out in any span of that length, whoever hands them out."""

from datetime import datetime, timedelta
from functools import partial

import pytest

from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background, parked


def busiest(starts: list[datetime], seconds: int) -> int:
    """The most that began in any span of that length."""
    return max(sum(first <= start < first + timedelta(seconds=seconds) for start in starts) for first in starts)


def elapse(db: TestDatabase, seconds: float) -> None:
    """As if what was let through had been let through that much earlier."""
    db.execute("UPDATE passes SET at = at - make_interval(secs => $1)", seconds)


def test_so_many_and_no_more(api: Api) -> None:
    api.configure(rate={"limit": 3, "per_seconds": 3600})
    api.enqueue_many(5)
    assert len(api.claim(max_jobs=2)["jobs"]) == 2
    assert len(api.claim(max_jobs=2)["jobs"]) == 1
    assert api.claim(max_jobs=2)["jobs"] == []


def test_an_empty_answer_says_when_to_come_again(api: Api, db: TestDatabase) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 10})
    api.enqueue_many(2)
    assert api.claim()["poll_after_ms"] == 0
    assert 0 < api.claim()["poll_after_ms"] <= 10_100
    elapse(db, 8)
    assert 0 < api.claim()["poll_after_ms"] <= 2_100


def test_nobody_is_told_to_stay_away_for_longer_than_the_longest_wait(api: Api) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 3600})
    api.enqueue_many(2)
    api.claim_one()
    assert api.claim()["poll_after_ms"] == 30_000


def test_the_first_queue_that_will_give_something_says_when(api: Api) -> None:
    slow, fast = api.queue, f"{api.queue}-fast"
    api.configure(rate={"limit": 1, "per_seconds": 3600})
    api.put(f"/queues/{fast}", {"rate": {"limit": 1, "per_seconds": 10}})
    for name in (slow, fast):
        api.enqueue_many(2, queue=name)
    assert len(api.claim(queues=[slow, fast], max_jobs=9)["jobs"]) == 2
    assert 0 < api.claim(queues=[slow, fast], max_jobs=9)["poll_after_ms"] <= 10_100


def test_an_empty_queue_with_a_rate_tells_nobody_to_stay_away(api: Api) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 3600})
    assert api.claim(wait_seconds=0.01)["poll_after_ms"] == 0


def test_what_has_passed_comes_free_again_one_by_one(api: Api, db: TestDatabase) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 100})
    api.enqueue_many(5)
    api.claim_one()
    elapse(db, 60)
    api.claim_one()
    assert api.claim()["jobs"] == []
    elapse(db, 50)
    assert len(api.claim(max_jobs=5)["jobs"]) == 1


def test_polls_that_find_nothing_use_nothing_up(api: Api) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 3600})
    for _ in range(5):
        assert api.claim(max_jobs=2)["jobs"] == []
    api.enqueue_many(3)
    assert len(api.claim(max_jobs=3)["jobs"]) == 2


def test_a_job_that_comes_back_counts_each_time_it_is_handed_out(api: Api) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 3600})
    api.enqueue()
    for _ in range(2):
        api.release(api.claim_one())
    assert api.claim()["jobs"] == []


def test_no_span_has_more_even_with_two_brokers(api: Api, second: Api, background: Background) -> None:
    api.configure(rate={"limit": 15, "per_seconds": 1})
    wait_until(lambda: second.get(f"/queues/{api.queue}").get("rate"))
    api.enqueue_many(45)
    taken: list[str] = []

    def work(at: Api) -> None:
        while len(taken) < 45:
            taken.extend(job["id"] for job in at.claim(max_jobs=2, wait_seconds=0.5)["jobs"])

    background.together(*[partial(work, at) for at in (api, second) * 3])
    assert len(set(taken)) == len(taken) == 45
    assert busiest([when(api.job(job)["started_at"]) for job in taken], 1) <= 15


def test_a_parked_poll_wakes_when_the_rate_has_something_to_give(lone: Api, background: Background) -> None:
    lone.configure(rate={"limit": 1, "per_seconds": 1})
    lone.enqueue_many(2)
    first = lone.claim_one()
    poll = background.claim(lone)
    second = poll.result(20)["jobs"][0]
    starts = [when(lone.job(job["id"])["started_at"]) for job in (first, second)]
    assert starts[1] - starts[0] >= timedelta(seconds=1)


@pytest.mark.parametrize("max_jobs", [1, 2, 10])
def test_every_parked_poll_gets_its_share(lone: Api, background: Background, max_jobs: int) -> None:
    lone.configure(rate={"limit": 2, "per_seconds": 1})
    lone.enqueue_many(100)
    polls = background.claims(4, lone, max_jobs=max_jobs)
    taken = [job["id"] for poll in polls for job in poll.result(20)["jobs"]]
    assert len(set(taken)) == len(taken) >= 4
    assert busiest([when(lone.job(job)["started_at"]) for job in taken], 1) <= 2


def test_a_poll_that_waits_for_a_slow_rate_hears_that_it_is_quick_now(lone: Api, background: Background) -> None:
    lone.configure(rate={"limit": 1, "per_seconds": 3600})
    lone.enqueue_many(3)
    lone.claim_one()
    polls = background.claims(2, lone)
    wait_until(lambda: parked(lone.http) == 2)
    lone.configure(rate={"limit": 1, "per_seconds": 1})
    assert all(len(poll.result(20)["jobs"]) == 1 for poll in polls)


def test_raised_or_removed_it_wakes_the_polls(lone: Api, background: Background) -> None:
    lone.configure(rate={"limit": 1, "per_seconds": 3600})
    lone.enqueue_many(4)
    lone.claim_one()
    configs: list[Json] = [{"rate": {"limit": 2, "per_seconds": 3600}}, {}]
    for config in configs:
        poll = background.claim(lone)
        wait_until(lambda: parked(lone.http) == 1)
        lone.configure(**config)
        assert len(poll.result(20)["jobs"]) == 1


def test_a_claim_with_a_key_is_repeated_at_no_cost(api: Api) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 3600})
    api.enqueue_many(4)
    first = api.claim(key="k")["jobs"]
    assert api.claim(key="k")["jobs"] == first
    assert len(api.claim(max_jobs=4)["jobs"]) == 1
    assert api.claim(key="other")["poll_after_ms"] > 0


def test_with_max_running_the_narrower_holds(api: Api) -> None:
    api.configure(rate={"limit": 3, "per_seconds": 3600}, max_running=2)
    api.enqueue_many(6)
    held = api.claim(max_jobs=6)["jobs"]
    assert len(held) == 2
    assert api.claim(wait_seconds=0.01)["poll_after_ms"] == 0
    for job in held:
        api.complete(job)
    assert len(api.claim(max_jobs=6)["jobs"]) == 1


def test_only_what_matters_is_kept(api: Api, db: TestDatabase) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 10})
    api.enqueue_many(10)
    for _ in range(10):
        api.claim_one()
        elapse(db, 11)
    assert db.value("SELECT count(*) FROM passes JOIN queues ON lane / 256 = queues.id WHERE name = $1", api.queue) <= 3
