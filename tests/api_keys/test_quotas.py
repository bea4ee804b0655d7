"""What one key may use up: calls, and leases held at once. Beyond it 429 with Retry-After; others do not notice."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.api_keys.authenticator import TokenBucket
from app.errors import RateLimited
from tests.api import Api, Json
from tests.api_keys.conftest import Callers, Key
from tests.broker import RunningBroker
from tests.database import TestDatabase
from tests.polls import Background

ONE_CALL = 0.01  # a second: one call at once, and the next in a hundred seconds


def spent(http: httpx.Client) -> None:
    response = http.get("/jobs")
    assert (response.status_code, response.json()["code"]) == (429, "rate_limited"), response.text
    assert 1 <= int(response.headers["retry-after"]) <= 100


def test_a_key_that_calls_too_often_is_put_off_and_others_are_not(callers: Callers) -> None:
    hasty, calm = callers.api(requests_per_second=ONE_CALL), callers.api(requests_per_second=1000)
    assert hasty.http.get("/jobs").status_code == 200
    for _ in range(3):
        spent(hasty.http)
        assert calm.http.get("/jobs").status_code == 200


def test_what_is_put_off_is_not_done(callers: Callers) -> None:
    hasty = callers.api(requests_per_second=ONE_CALL)
    hasty.enqueue()
    hasty.enqueue(status=429)
    assert len(callers.admin.get("/jobs")["items"]) == 1


def test_two_keys_of_one_caller_share_its_quota(callers: Callers) -> None:
    one, other = (callers.key(name="sharing", requests_per_second=ONE_CALL) for _ in range(2))
    assert one.api.http.get("/jobs").status_code == 200
    spent(other.api.http)


def test_what_was_spent_stays_spent_when_keys_are_made_and_revoked(callers: Callers) -> None:
    key = callers.key(name="spending", requests_per_second=ONE_CALL)
    assert key.api.http.get("/jobs").status_code == 200
    callers.revoke(callers.key(name="spending", requests_per_second=ONE_CALL))
    spent(key.api.http)


def test_nobody_spends_the_quota_of_a_key_whose_secret_he_does_not_know(callers: Callers) -> None:
    key = callers.key(requests_per_second=ONE_CALL)
    guessing = callers.holding(key.text[:-64] + "0" * 64)
    assert [guessing.http.get("/jobs").status_code for _ in range(3)] == [401] * 3
    assert key.api.http.get("/jobs").status_code == 200


def test_a_budget_fills_again(eventually: Callable[..., Any]) -> None:
    budget = TokenBucket(20)

    def let_in() -> bool:
        try:
            budget.take_token()
        except RateLimited:
            return False
        return True

    assert [let_in() for _ in range(20)] == [True] * 20, "a second's worth at once"
    eventually(lambda: not let_in())
    eventually(let_in)


# Leases


def claimed(response: httpx.Response) -> list[Json]:
    """What a claim got; nothing if it was put off."""
    if response.status_code == 429:
        assert (response.json()["code"], response.headers["retry-after"]) == ("rate_limited", "1")
        return []
    assert response.status_code == 200, response.text
    jobs: list[Json] = response.json()["jobs"]
    return jobs


@pytest.mark.parametrize("rules", [{}, {"max_running": 100}], ids=["any queue", "a queue with a limit of its own"])
def test_a_caller_never_holds_more_than_its_quota_however_many_claim_at_once(
    rules: Json, callers: Callers, another: RunningBroker, background: Background, eventually: Callable[..., Any]
) -> None:
    admin, key = callers.admin, callers.key("work", max_leases=5)
    authorization = {"Authorization": f"Bearer {key.text}"}
    eventually(lambda: another.http.get("/jobs", headers=authorization).status_code == 403)  # it knows the key
    admin.configure(**rules)
    admin.enqueue_many(60)

    def claim(number: int) -> list[Json]:
        http = another.http if number % 2 else key.api.http
        headers = authorization | ({"Idempotency-Key": f"{key.name}-{number}"} if number % 4 < 2 else {})
        return claimed(http.post("/claim", json={"queues": [admin.queue], "max_jobs": 3}, headers=headers))

    for first in (0, 12, 24):
        numbers = range(first, first + 12)
        jobs = [
            job
            for some in background.together(*[lambda number=number: claim(number) for number in numbers])
            for job in some
        ]
        assert len({job["id"] for job in jobs}) == 5
        assert admin.counts()["running"] == 5
        for job in jobs:
            key.api.complete(job)


def test_another_caller_claims_what_the_first_may_not(callers: Callers) -> None:
    small, large = callers.api(max_leases=1), callers.api()
    small.enqueue_many(3)
    small.claim_one()
    assert len(large.claim(max_jobs=10)["jobs"]) == 2


@pytest.fixture
def full(callers: Callers) -> tuple[Key, Json]:
    """A key that holds as much as it may, and its lease; another job waits."""
    key = callers.key(max_leases=1)
    key.api.enqueue_many(2)
    return key, key.api.claim_one(key="first", max_jobs=10)


def put_off(api: Api, key: str | None = None) -> None:
    headers = {"Idempotency-Key": key} if key else {}
    response = api.http.post("/claim", json={"queues": [api.queue]}, headers=headers)
    assert claimed(response) == []
    assert response.status_code == 429


@pytest.mark.parametrize("key", [None, "second"], ids=["without a key", "with a key"])
def test_a_full_caller_is_put_off_until_it_settles(key: str | None, full: tuple[Key, Json]) -> None:
    api, held = full[0].api, full[1]
    put_off(api, key)
    api.complete(held)
    assert api.claim_one(key=key)["id"] != held["id"]


def test_a_lease_that_ran_out_no_longer_counts(
    full: tuple[Key, Json], stored: TestDatabase, eventually: Callable[..., Any]
) -> None:
    api, held = full[0].api, full[1]
    put_off(api)
    stored.age(held["id"], 61)
    eventually(lambda: claimed(api.http.post("/claim", json={"queues": [api.queue]})))


def test_a_claim_that_settles_makes_room_for_itself(full: tuple[Key, Json]) -> None:
    api, held = full[0].api, full[1]
    item = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    answer = api.claim(settle=[item])
    assert ([result["status"] for result in answer["settled"]], len(answer["jobs"])) == (["settled"], 1)


@pytest.mark.parametrize("key", [None, "third"], ids=["without a key", "with a key"])
def test_what_a_full_caller_settled_is_told_though_there_is_no_room_for_more(
    key: str | None, full: tuple[Key, Json]
) -> None:
    """An error would leave it in the dark about its settlements."""
    api, held = full[0].api, full[1]
    lost = {"job_id": held["id"], "lease_token": "not-the-token", "outcome": "complete"}
    answer = api.claim(settle=[lost], key=key)
    assert ([result["status"] for result in answer["settled"]], answer["jobs"]) == (["lease_lost"], [])


def test_a_full_caller_can_repeat_the_claim_that_filled_it(full: tuple[Key, Json]) -> None:
    api, held = full[0].api, full[1]
    assert api.claim_one(key="first")["lease_token"] == held["lease_token"]


def test_two_keys_of_one_caller_share_its_leases(callers: Callers) -> None:
    one, other = (callers.key(name="sharing-leases", max_leases=1) for _ in range(2))
    one.api.enqueue_many(2)
    one.api.claim_one()
    put_off(other.api)


def test_a_caller_with_a_quota_claims_from_another_queue_when_the_lane_lock_of_the_first_is_held(
    callers: Callers, stored: TestDatabase
) -> None:
    api = callers.admin
    api.configure(max_running=5)
    api.enqueue_many(2)
    api.complete(api.claim_one())
    other = api.enqueue(queue=f"{api.queue}-unlimited")
    with stored.lane_locked(api.queue):
        assert callers.api(max_leases=3).claim_one(queues=[api.queue, other["queue"]])["id"] == other["id"]
