"""The lease token is the fence.

At most one settlement per delivery is accepted, and only from its holder.
"""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from tests.api.leases.test_settle import REQUIRED_FIELDS, item
from tests.api_client import Api, Json
from tests.polls import metric_value
from tests.table import table

OUTCOMES = ["complete", "fail", "snooze", "release"]
Expire = Callable[[Json], None]
Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def held(api: Api) -> Json:
    return claimed_job(api)


def claimed_job(api: Api) -> Json:
    api.enqueue()
    return api.claim_one(worker_id="w")


def settle_one(api: Api, job: Json, outcome: str, status: int = 200) -> Json:
    response: Json = api.post(
        f"/jobs/{job['id']}/{outcome}",
        {"lease_token": job["lease_token"], **REQUIRED_FIELDS.get(outcome, {})},
        status=status,
    )
    return response


@table(
    "token",
    [
        "",
        " ",
        "garbage",
        "0",
        "x" * 5000,
        "5b7b9a88-a14a-4e74-8b43-018ef2aec98f",
        "00000000-0000-0000-0000-000000000000",
        "{}",
        "ä☃",
    ],
)
@table("outcome", OUTCOMES)
def test_wrong_token_is_a_lost_lease_and_never_invalid(api: Api, outcome: str, token: str) -> None:
    held = claimed_job(api)
    lost = metric_value(api.http, "settlements_lost_total")
    wrong = {**held, "lease_token": token}
    problem = settle_one(api, wrong, outcome, status=409)
    assert (problem["code"], problem["job_id"], problem["state"], problem["attempt"]) == (
        "lease_lost",
        held["id"],
        "running",
        1,
    )
    (result,) = api.settle(item(wrong, outcome))["results"]
    assert result == {"job_id": held["id"], "status": "lease_lost", "state": "running", "attempt": 1}
    assert metric_value(api.http, "settlements_lost_total") == lost + 2
    assert api.complete(held)["status"] == "settled"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_unknown_token_does_not_settle_a_ready_job(api: Api, outcome: str) -> None:
    job = api.enqueue()
    for token in ("", "00000000-0000-0000-0000-000000000000"):
        assert settle_one(api, {**job, "lease_token": token}, outcome, status=409)["state"] == "ready"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_stale_worker_cannot_settle(api: Api, held: Json, outcome: str, expire: Expire) -> None:
    expire(held)
    renewed = api.claim_one()
    problem = settle_one(api, held, outcome, status=409)
    assert (problem["state"], problem["attempt"]) == ("running", 2)
    assert api.settle(item(held, outcome))["results"][0]["status"] == "lease_lost"
    assert api.complete(renewed, result="mine")["status"] == "settled"
    assert settle_one(api, held, outcome, status=409)["state"] == "completed"
    assert api.job(held["id"])["result"] == "mine"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_repeated_settlement_gets_the_same_response(api: Api, held: Json, outcome: str) -> None:
    first = settle_one(api, held, outcome)
    assert first["status"] == "settled"
    for again in (settle_one(api, held, outcome), api.settle(item(held, outcome))["results"][0]):
        assert again == {**first, "status": "already_settled"}


def test_first_result_is_kept(api: Api, held: Json) -> None:
    api.complete(held, result=1)
    assert api.complete(held, result=2)["status"] == "already_settled"
    assert api.job(held["id"])["result"] == 1


def test_repeated_settlement_counts_once(api: Api, held: Json) -> None:
    for _ in range(3):
        api.fail(held)
    assert len(api.get(f"/jobs/{held['id']}/attempts")["items"]) == 1
    assert api.settle(item(held, "fail"))["settled"] == 1


@pytest.mark.parametrize(("outcome", "other"), list(permutations(OUTCOMES, 2)))
def test_second_outcome_with_the_same_token_is_a_lost_lease(api: Api, held: Json, outcome: str, other: str) -> None:
    state = settle_one(api, held, outcome)["state"]
    assert settle_one(api, held, other, status=409)["state"] == state
    assert api.settle(item(held, other))["results"][0]["status"] == "lease_lost"
    assert api.job(held["id"])["state"] == state


def test_repeated_final_failure_is_already_settled(api: Api, held: Json) -> None:
    first = api.fail(held, retryable=False)
    assert (first["state"], "run_at" in first) == ("dead", False)
    assert api.fail(held, retryable=False) == {**first, "status": "already_settled"}


@pytest.mark.parametrize("outcome", ["fail", "snooze"])
def test_repeated_settlement_gets_the_same_response_after_the_job_became_due(
    api: Api, held: Json, outcome: str, eventually: Eventually
) -> None:
    first = api.settle(item(held, outcome, retry_after_seconds=0, delay_seconds=0))["results"][0]
    eventually(lambda: api.job(held["id"])["state"] == "ready")
    assert settle_one(api, held, outcome) == {**first, "status": "already_settled"}


@pytest.mark.parametrize("outcome", ["fail", "snooze", "release"])
def test_old_token_is_lost_after_the_next_delivery(api: Api, held: Json, outcome: str, eventually: Eventually) -> None:
    api.settle(item(held, outcome, retry_after_seconds=0, delay_seconds=0))
    eventually(lambda: api.job(held["id"])["state"] == "ready")
    api.claim_one()
    assert settle_one(api, held, outcome, status=409)["code"] == "lease_lost"


def test_token_is_valid_only_for_its_job(api: Api, held: Json) -> None:
    other = api.enqueue()
    api.claim_one()
    assert api.complete({**other, "lease_token": held["lease_token"]}, status=409)["code"] == "lease_lost"
    assert {api.job(job["id"])["state"] for job in (held, other)} == {"running"}


def test_every_delivery_has_a_new_token(api: Api) -> None:
    for _ in range(10):
        api.enqueue()
    tokens = set()
    for _ in range(3):
        jobs = api.claim(max_jobs=10)["jobs"]
        tokens |= {job["lease_token"] for job in jobs}
        api.settle(*[item(job, "release") for job in jobs])
    assert len(tokens) == 30


def test_old_token_is_lost_after_a_replay_from_the_dead_letters(api: Api, held: Json) -> None:
    api.fail(held, retryable=False)
    api.post(f"/dead-letters/{held['id']}/replay")
    assert api.complete(held, status=409)["state"] == "ready"
    assert api.fail(held, status=409)["state"] == "ready"


@pytest.mark.parametrize("outcome", ["fail", "snooze", "release"])
def test_job_with_a_requested_cancellation_is_cancelled_by_any_outcome_but_complete(
    api: Api, held: Json, outcome: str
) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    first = settle_one(api, held, outcome)
    assert (first["status"], first["state"]) == ("settled", "cancelled")
    assert settle_one(api, held, outcome) == {**first, "status": "already_settled"}
    assert api.job(held["id"])["state_reason"] == "cancelled_by_user"
    assert api.claim()["jobs"] == []


def test_job_with_a_requested_cancellation_can_still_complete(api: Api, held: Json) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    assert api.complete(held, result=1)["state"] == "completed"
    assert api.job(held["id"])["state"] == "completed"


def test_job_with_a_requested_cancellation_is_cancelled_when_its_lease_expires(
    api: Api, held: Json, expire: Expire
) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    expire(held)
    assert api.job(held["id"])["state"] == "cancelled"
