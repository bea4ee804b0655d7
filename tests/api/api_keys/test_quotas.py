"""Quotas of a key: calls a second, and leases held at the same time.

Above a quota, calls get 429 with Retry-After; other keys are unaffected.
"""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.api_keys.authenticator import TokenBucket
from app.errors import RateLimited
from tests.api.api_keys.conftest import Callers, Key
from tests.api_client import Api, Json
from tests.broker import RunningBroker
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table

ONE_CALL_PER_100_SECONDS = 0.01  # per second: the second call is allowed after 100 seconds


def assert_rate_limited(http: httpx.Client) -> None:
    response = http.get("/jobs")
    assert (response.status_code, response.json()["code"]) == (429, "rate_limited"), response.text
    assert 1 <= int(response.headers["retry-after"]) <= 100


def test_key_above_its_request_quota_gets_429_and_other_keys_do_not(callers: Callers) -> None:
    limited, unlimited = (
        callers.api(requests_per_second=ONE_CALL_PER_100_SECONDS),
        callers.api(requests_per_second=1000),
    )
    assert limited.http.get("/jobs").status_code == 200
    for _ in range(3):
        assert_rate_limited(limited.http)
        assert unlimited.http.get("/jobs").status_code == 200


def test_request_above_the_quota_has_no_effect(callers: Callers) -> None:
    limited = callers.api(requests_per_second=ONE_CALL_PER_100_SECONDS)
    limited.enqueue()
    limited.enqueue(status=429)
    assert len(callers.admin.get("/jobs")["items"]) == 1


def test_two_keys_of_one_name_share_the_request_quota(callers: Callers) -> None:
    first_key, second_key = (
        callers.key(name="sharing", requests_per_second=ONE_CALL_PER_100_SECONDS) for _ in range(2)
    )
    assert first_key.api.http.get("/jobs").status_code == 200
    assert_rate_limited(second_key.api.http)


def test_reloading_the_keys_refills_no_request_quota(callers: Callers) -> None:
    key = callers.key(name="spending", requests_per_second=ONE_CALL_PER_100_SECONDS)
    assert key.api.http.get("/jobs").status_code == 200
    callers.revoke(callers.key(name="spending", requests_per_second=ONE_CALL_PER_100_SECONDS))
    assert_rate_limited(key.api.http)


def test_caller_with_a_wrong_secret_uses_up_no_request_quota(callers: Callers) -> None:
    key = callers.key(requests_per_second=ONE_CALL_PER_100_SECONDS)
    guessing = callers.with_key(key.text[:-64] + "0" * 64)
    assert [guessing.http.get("/jobs").status_code for _ in range(3)] == [401] * 3
    assert key.api.http.get("/jobs").status_code == 200


def test_token_bucket_refills(eventually: Callable[..., Any]) -> None:
    bucket = TokenBucket(20)

    def takes_token() -> bool:
        try:
            bucket.take_token()
        except RateLimited:
            return False
        return True

    assert [takes_token() for _ in range(20)] == [True] * 20, "a burst of one second's worth"
    eventually(lambda: not takes_token())
    eventually(takes_token)


@table(("per_second", "calls"), [(1, "1 call a second"), (0.5, "0.5 calls a second"), (20, "20 calls a second")])
def test_error_of_an_empty_bucket_names_the_quota(per_second: float, calls: str) -> None:
    assert error_of_empty_bucket(TokenBucket(per_second)) == f"this API key may make {calls}"


def error_of_empty_bucket(bucket: TokenBucket) -> str:
    while True:
        try:
            bucket.take_token()
        except RateLimited as error:
            return error.detail


# Leases


def claimed(response: httpx.Response) -> list[Json]:
    """The jobs of a claim; empty if it was rejected with 429."""
    if response.status_code == 429:
        assert (response.json()["code"], response.headers["retry-after"]) == ("rate_limited", "1")
        return []
    assert response.status_code == 200, response.text
    jobs: list[Json] = response.json()["jobs"]
    return jobs


@pytest.mark.parametrize("config", [{}, {"max_running": 100}], ids=["any queue", "a queue with a limit of its own"])
def test_concurrent_claims_never_exceed_the_lease_quota(
    config: Json, callers: Callers, second_broker: RunningBroker, background: Background, eventually: Callable[..., Any]
) -> None:
    admin, key = callers.admin, callers.key("work", max_leases=5)
    authorization = {"Authorization": f"Bearer {key.text}"}
    # The second broker has loaded the key.
    eventually(lambda: second_broker.http.get("/jobs", headers=authorization).status_code == 403)
    admin.configure(**config)
    admin.enqueue_many(60)

    def claim(number: int) -> list[Json]:
        http = second_broker.http if number % 2 else key.api.http
        headers = authorization | ({"Idempotency-Key": f"{key.name}-{number}"} if number % 4 < 2 else {})
        return claimed(http.post("/claim", json={"queues": [admin.queue], "max_jobs": 3}, headers=headers))

    for first in (0, 12, 24):
        numbers = range(first, first + 12)
        jobs = [
            job
            for batch in background.together(*[lambda number=number: claim(number) for number in numbers])
            for job in batch
        ]
        assert len({job["id"] for job in jobs}) == 5
        assert admin.counts()["running"] == 5
        for job in jobs:
            key.api.complete(job)


def test_other_caller_claims_jobs_beyond_the_lease_quota_of_the_first(callers: Callers) -> None:
    small, large = callers.api(max_leases=1), callers.api()
    small.enqueue_many(3)
    small.claim_one()
    assert len(large.claim(max_jobs=10)["jobs"]) == 2


@pytest.fixture
def caller_at_quota(callers: Callers) -> tuple[Key, Json]:
    """A key at its lease quota, and its lease. Another job is waiting."""
    key = callers.key(max_leases=1)
    key.api.enqueue_many(2)
    return key, key.api.claim_one(key="first", max_jobs=10)


def assert_claim_limited(api: Api, key: str | None = None) -> None:
    headers = {"Idempotency-Key": key} if key else {}
    response = api.http.post("/claim", json={"queues": [api.queue]}, headers=headers)
    assert claimed(response) == []
    assert response.status_code == 429


@pytest.mark.parametrize("key", [None, "second"], ids=["without a key", "with a key"])
def test_caller_at_its_lease_quota_gets_429_until_it_settles(
    key: str | None, caller_at_quota: tuple[Key, Json]
) -> None:
    api, lease = caller_at_quota[0].api, caller_at_quota[1]
    assert_claim_limited(api, key)
    api.complete(lease)
    assert api.claim_one(key=key)["id"] != lease["id"]


def test_expired_lease_does_not_count_toward_the_quota(
    caller_at_quota: tuple[Key, Json], key_db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    api, lease = caller_at_quota[0].api, caller_at_quota[1]
    assert_claim_limited(api)
    key_db.age(lease["id"], 61)
    eventually(lambda: claimed(api.http.post("/claim", json={"queues": [api.queue]})))


def test_claim_that_settles_a_job_frees_its_own_lease_quota(caller_at_quota: tuple[Key, Json]) -> None:
    api, lease = caller_at_quota[0].api, caller_at_quota[1]
    item = {"job_id": lease["id"], "lease_token": lease["lease_token"], "outcome": "complete"}
    response = api.claim(settle=[item])
    assert ([result["status"] for result in response["settled"]], len(response["jobs"])) == (["settled"], 1)


@pytest.mark.parametrize("key", [None, "third"], ids=["without a key", "with a key"])
def test_claim_at_the_lease_quota_still_returns_its_settlements(
    key: str | None, caller_at_quota: tuple[Key, Json]
) -> None:
    """An error response would hide the results of its settlements. Nothing would end a wait."""
    api, lease = caller_at_quota[0].api, caller_at_quota[1]
    lost = {"job_id": lease["id"], "lease_token": "not-the-token", "outcome": "complete"}
    api.http.timeout = 15
    for waits in (False, True):
        response = api.claim(settle=[lost], key=key, wait_seconds=25, wait_after_settle=waits)
        assert ([result["status"] for result in response["settled"]], response["jobs"]) == (["lease_lost"], [])
        assert response["poll_after_ms"] > 0


def test_claim_at_the_lease_quota_waits_for_no_lane_lock(
    caller_at_quota: tuple[Key, Json], callers: Callers, key_db: TestDatabase
) -> None:
    api, lease = caller_at_quota[0].api, caller_at_quota[1]
    callers.admin.configure(max_running=5)
    callers.admin.complete(callers.admin.claim_one())  # creates the row of the lane lock
    callers.admin.enqueue()
    lost = {"job_id": lease["id"], "lease_token": "not-the-token", "outcome": "complete"}
    with key_db.lane_locked(api.queue):
        response = api.claim(settle=[lost])
    assert ([result["status"] for result in response["settled"]], response["jobs"]) == (["lease_lost"], [])


def test_caller_at_its_lease_quota_can_replay_its_claim(caller_at_quota: tuple[Key, Json]) -> None:
    api, lease = caller_at_quota[0].api, caller_at_quota[1]
    assert api.claim_one(key="first")["lease_token"] == lease["lease_token"]


def test_two_keys_of_one_name_share_the_lease_quota(callers: Callers) -> None:
    first_key, second_key = (callers.key(name="sharing-leases", max_leases=1) for _ in range(2))
    first_key.api.enqueue_many(2)
    first_key.api.claim_one()
    assert_claim_limited(second_key.api)


def test_caller_with_a_lease_quota_skips_a_queue_whose_lane_lock_is_held(
    callers: Callers, key_db: TestDatabase
) -> None:
    api = callers.admin
    api.configure(max_running=5)
    api.enqueue_many(2)
    api.complete(api.claim_one())
    second_key = api.enqueue(queue=f"{api.queue}-unlimited")
    with key_db.lane_locked(api.queue):
        assert callers.api(max_leases=3).claim_one(queues=[api.queue, second_key["queue"]])["id"] == second_key["id"]
