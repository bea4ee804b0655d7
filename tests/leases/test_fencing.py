"""The token is the fence: at most one settlement of a hand-out is accepted, and only from who holds it."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from tests.api import Api, Json
from tests.leases.test_settle import NEEDED, item
from tests.polls import counted

OUTCOMES = ["complete", "fail", "snooze", "release"]
Expire = Callable[[Json], None]
Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def held(api: Api) -> Json:
    api.enqueue()
    return api.claim_one(worker_id="w")


def settle_one(api: Api, job: Json, outcome: str, status: int = 200) -> Json:
    answer: Json = api.post(
        f"/jobs/{job['id']}/{outcome}", {"lease_token": job["lease_token"], **NEEDED.get(outcome, {})}, status=status
    )
    return answer


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_wrong_token_is_lost_and_never_invalid(api: Api, held: Json, outcome: str, token: str) -> None:
    lost = counted(api.http, "settlements_lost_total")
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
    assert counted(api.http, "settlements_lost_total") == lost + 2
    assert api.complete(held)["status"] == "settled"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_token_that_was_never_given_out_does_not_settle_a_waiting_job(api: Api, outcome: str) -> None:
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
def test_the_same_settlement_again_has_the_same_answer(api: Api, held: Json, outcome: str) -> None:
    first = settle_one(api, held, outcome)
    assert first["status"] == "settled"
    for again in (settle_one(api, held, outcome), api.settle(item(held, outcome))["results"][0]):
        assert again == {**first, "status": "already_settled"}


def test_the_first_result_stands(api: Api, held: Json) -> None:
    api.complete(held, result=1)
    assert api.complete(held, result=2)["status"] == "already_settled"
    assert api.job(held["id"])["result"] == 1


def test_a_settlement_that_is_repeated_counts_once(api: Api, held: Json) -> None:
    for _ in range(3):
        api.fail(held)
    assert len(api.get(f"/jobs/{held['id']}/attempts")["items"]) == 1
    assert api.settle(item(held, "fail"))["settled"] == 1


@pytest.mark.parametrize(("outcome", "other"), list(permutations(OUTCOMES, 2)))
def test_another_outcome_with_the_same_token_is_lost(api: Api, held: Json, outcome: str, other: str) -> None:
    state = settle_one(api, held, outcome)["state"]
    assert settle_one(api, held, other, status=409)["state"] == state
    assert api.settle(item(held, other))["results"][0]["status"] == "lease_lost"
    assert api.job(held["id"])["state"] == state


def test_a_failure_that_killed_the_job_is_already_settled_too(api: Api, held: Json) -> None:
    first = api.fail(held, retryable=False)
    assert (first["state"], "run_at" in first) == ("dead", False)
    assert api.fail(held, retryable=False) == {**first, "status": "already_settled"}


@pytest.mark.parametrize("outcome", ["fail", "snooze"])
def test_a_repeated_settlement_has_the_same_answer_when_the_job_has_become_due_since(
    api: Api, held: Json, outcome: str, eventually: Eventually
) -> None:
    first = api.settle(item(held, outcome, retry_after_seconds=0, delay_seconds=0))["results"][0]
    eventually(lambda: api.job(held["id"])["state"] == "ready")
    assert settle_one(api, held, outcome) == {**first, "status": "already_settled"}


@pytest.mark.parametrize("outcome", ["fail", "snooze", "release"])
def test_after_the_next_hand_out_the_old_token_is_lost(
    api: Api, held: Json, outcome: str, eventually: Eventually
) -> None:
    api.settle(item(held, outcome, retry_after_seconds=0, delay_seconds=0))
    eventually(lambda: api.job(held["id"])["state"] == "ready")
    api.claim_one()
    assert settle_one(api, held, outcome, status=409)["code"] == "lease_lost"


def test_a_token_fits_its_own_job_only(api: Api, held: Json) -> None:
    other = api.enqueue()
    api.claim_one()
    assert api.complete({**other, "lease_token": held["lease_token"]}, status=409)["code"] == "lease_lost"
    assert {api.job(job["id"])["state"] for job in (held, other)} == {"running"}


def test_every_hand_out_has_a_token_of_its_own(api: Api) -> None:
    for _ in range(10):
        api.enqueue()
    tokens = set()
    for _ in range(3):
        jobs = api.claim(max_jobs=10)["jobs"]
        tokens |= {job["lease_token"] for job in jobs}
        api.settle(*[item(job, "release") for job in jobs])
    assert len(tokens) == 30


def test_after_a_replay_from_the_dead_letters_the_old_token_is_lost(api: Api, held: Json) -> None:
    api.fail(held, retryable=False)
    api.post(f"/dead-letters/{held['id']}/replay")
    assert api.complete(held, status=409)["state"] == "ready"
    assert api.fail(held, status=409)["state"] == "ready"


@pytest.mark.parametrize("outcome", ["fail", "snooze", "release"])
def test_a_job_asked_to_stop_ends_as_cancelled_by_any_outcome_but_complete(api: Api, held: Json, outcome: str) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    first = settle_one(api, held, outcome)
    assert (first["status"], first["state"]) == ("settled", "cancelled")
    assert settle_one(api, held, outcome) == {**first, "status": "already_settled"}
    assert api.job(held["id"])["state_reason"] == "cancelled_by_user"
    assert api.claim()["jobs"] == []


def test_a_job_asked_to_stop_may_still_complete(api: Api, held: Json) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    assert api.complete(held, result=1)["state"] == "completed"
    assert api.job(held["id"])["state"] == "completed"


def test_a_job_asked_to_stop_that_expires_is_cancelled(api: Api, held: Json, expire: Expire) -> None:
    api.post(f"/jobs/{held['id']}/cancel", {}, status=202)
    expire(held)
    assert api.job(held["id"])["state"] == "cancelled"
