"""rate: no window of that length contains more deliveries than the limit, over all brokers."""

from datetime import datetime, timedelta
from functools import partial

import pytest

from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background, parked_polls


def max_in_window(starts: list[datetime], seconds: int) -> int:
    """Returns the highest number of starts in any window of `seconds`."""
    return max(sum(first <= start < first + timedelta(seconds=seconds) for start in starts) for first in starts)


def age_usage(db: TestDatabase, seconds: float) -> None:
    """Moves the recorded rate-limit usage into the past."""
    db.execute("UPDATE rate_limit_usage SET at = at - make_interval(secs => $1)", seconds)


def test_rate_limits_delivered_jobs(api: Api) -> None:
    api.configure(rate={"limit": 3, "per_seconds": 3600})
    api.enqueue_many(5)
    assert len(api.claim(max_jobs=2)["jobs"]) == 2
    assert len(api.claim(max_jobs=2)["jobs"]) == 1
    assert api.claim(max_jobs=2)["jobs"] == []


def test_empty_response_says_when_to_poll_again(api: Api, db: TestDatabase) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 10})
    api.enqueue_many(2)
    assert api.claim()["poll_after_ms"] == 0
    assert 0 < api.claim()["poll_after_ms"] <= 10_100
    age_usage(db, 8)
    assert 0 < api.claim()["poll_after_ms"] <= 2_100


def test_poll_after_never_exceeds_the_longest_wait(api: Api) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 3600})
    api.enqueue_many(2)
    api.claim_one()
    assert api.claim()["poll_after_ms"] == 30_000


def test_poll_after_follows_the_queue_that_allows_a_job_first(api: Api) -> None:
    slow, fast = api.queue, f"{api.queue}-fast"
    api.configure(rate={"limit": 1, "per_seconds": 3600})
    api.put(f"/queues/{fast}", {"rate": {"limit": 1, "per_seconds": 10}})
    for name in (slow, fast):
        api.enqueue_many(2, queue=name)
    assert len(api.claim(queues=[slow, fast], max_jobs=9)["jobs"]) == 2
    assert 0 < api.claim(queues=[slow, fast], max_jobs=9)["poll_after_ms"] <= 10_100


def test_empty_queue_with_a_rate_has_no_poll_after(api: Api) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 3600})
    assert api.claim(wait_seconds=0.6)["poll_after_ms"] == 0


def test_usage_leaves_the_rate_window_job_by_job(api: Api, db: TestDatabase) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 100})
    api.enqueue_many(5)
    api.claim_one()
    age_usage(db, 60)
    api.claim_one()
    assert api.claim()["jobs"] == []
    age_usage(db, 50)
    assert len(api.claim(max_jobs=5)["jobs"]) == 1


def test_empty_polls_use_no_rate(api: Api) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 3600})
    for _ in range(5):
        assert api.claim(max_jobs=2)["jobs"] == []
    api.enqueue_many(3)
    assert len(api.claim(max_jobs=3)["jobs"]) == 2


def test_every_delivery_of_a_released_job_counts_against_the_rate(api: Api) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 3600})
    api.enqueue()
    for _ in range(2):
        api.release(api.claim_one())
    assert api.claim()["jobs"] == []


@pytest.mark.slow
def test_no_window_exceeds_the_rate_with_two_brokers(api: Api, second_api: Api, background: Background) -> None:
    api.configure(rate={"limit": 15, "per_seconds": 1})
    wait_until(lambda: second_api.get(f"/queues/{api.queue}").get("rate"))
    api.enqueue_many(45)
    claimed: list[str] = []

    def work(broker_api: Api) -> None:
        while len(claimed) < 45:
            claimed.extend(job["id"] for job in broker_api.claim(max_jobs=2, wait_seconds=0.5)["jobs"])

    background.together(*[partial(work, broker_api) for broker_api in (api, second_api) * 3])
    assert len(set(claimed)) == len(claimed) == 45
    assert max_in_window([parse_time(api.job(job)["started_at"]) for job in claimed], 1) <= 15


def test_waiting_poll_wakes_when_the_rate_allows_a_job(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(rate={"limit": 1, "per_seconds": 1})
    isolated_api.enqueue_many(2)
    first = isolated_api.claim_one()
    poll = background.claim(isolated_api)
    second = poll.result(20)["jobs"][0]
    starts = [parse_time(isolated_api.job(job["id"])["started_at"]) for job in (first, second)]
    assert starts[1] - starts[0] >= timedelta(seconds=1)


@pytest.mark.slow
@pytest.mark.parametrize("max_jobs", [1, 2, 10])
def test_every_waiting_poll_gets_a_job_within_the_rate(
    isolated_api: Api, background: Background, max_jobs: int
) -> None:
    isolated_api.configure(rate={"limit": 2, "per_seconds": 1})
    isolated_api.enqueue_many(100)
    polls = background.claims(4, isolated_api, max_jobs=max_jobs)
    claimed = [job["id"] for poll in polls for job in poll.result(20)["jobs"]]
    assert len(set(claimed)) == len(claimed) >= 4
    assert max_in_window([parse_time(isolated_api.job(job)["started_at"]) for job in claimed], 1) <= 2


@pytest.mark.slow
def test_poll_waiting_for_a_slow_rate_follows_a_faster_one(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(rate={"limit": 1, "per_seconds": 3600})
    isolated_api.enqueue_many(3)
    isolated_api.claim_one()
    polls = background.claims(2, isolated_api)
    wait_until(lambda: parked_polls(isolated_api.http) == 2)
    isolated_api.configure(rate={"limit": 1, "per_seconds": 1})
    assert all(len(poll.result(20)["jobs"]) == 1 for poll in polls)


def test_raised_or_removed_rate_wakes_polls(isolated_api: Api, background: Background) -> None:
    isolated_api.configure(rate={"limit": 1, "per_seconds": 3600})
    isolated_api.enqueue_many(4)
    isolated_api.claim_one()
    configs: list[Json] = [{"rate": {"limit": 2, "per_seconds": 3600}}, {}]
    for config in configs:
        poll = background.claim(isolated_api)
        wait_until(lambda: parked_polls(isolated_api.http) == 1)
        isolated_api.configure(**config)
        assert len(poll.result(20)["jobs"]) == 1


def test_replayed_claim_uses_no_rate(api: Api) -> None:
    api.configure(rate={"limit": 2, "per_seconds": 3600})
    api.enqueue_many(4)
    first = api.claim(key="k")["jobs"]
    assert api.claim(key="k")["jobs"] == first
    assert len(api.claim(max_jobs=4)["jobs"]) == 1
    assert api.claim(key="other")["poll_after_ms"] > 0


def test_rate_and_max_running_apply_together(api: Api) -> None:
    api.configure(rate={"limit": 3, "per_seconds": 3600}, max_running=2)
    api.enqueue_many(6)
    held = api.claim(max_jobs=6)["jobs"]
    assert len(held) == 2
    assert api.claim(wait_seconds=0.6)["poll_after_ms"] == 0
    for job in held:
        api.complete(job)
    assert len(api.claim(max_jobs=6)["jobs"]) == 1


def test_old_rate_usage_is_deleted(api: Api, db: TestDatabase) -> None:
    api.configure(rate={"limit": 1, "per_seconds": 10})
    api.enqueue_many(10)
    for _ in range(10):
        api.claim_one()
        age_usage(db, 11)
    assert (
        db.value(
            "SELECT count(*) FROM rate_limit_usage JOIN queues ON lane / 256 = queues.id WHERE name = $1", api.queue
        )
        <= 3
    )
