"""An Idempotency-Key belongs to its caller: it replays no response to another caller."""

from tests.api.api_keys.conftest import Callers


def test_same_idempotency_key_of_two_callers_creates_two_jobs(callers: Callers) -> None:
    first_caller, second_caller = callers.api(), callers.api()
    first, second = (api.enqueue(key="k") for api in (first_caller, second_caller))
    assert first["id"] != second["id"]
    assert [api.enqueue(key="k")["id"] for api in (first_caller, second_caller)] == [first["id"], second["id"]]


def test_idempotency_key_of_another_caller_does_not_conflict_with_a_different_body(callers: Callers) -> None:
    first_caller, second_caller = callers.api(), callers.api()
    first_caller.enqueue(key="k", payload=1)
    assert second_caller.enqueue(key="k", payload=2)["payload"] == 2


def test_same_idempotency_key_of_two_callers_creates_two_batches(callers: Callers) -> None:
    first_caller, second_caller = callers.api(), callers.api()
    batches = [api.batch({}, {}, key="k")["results"] for api in (first_caller, second_caller, first_caller)]
    assert batches[0] == batches[2]
    assert {result["job_id"] for result in batches[0]}.isdisjoint(result["job_id"] for result in batches[1])


def test_same_idempotency_key_of_two_callers_claims_two_jobs(callers: Callers) -> None:
    first_caller, second_caller = callers.api(), callers.api()
    first_caller.enqueue_many(2)
    first, second = first_caller.claim_one(key="k"), second_caller.claim_one(key="k")
    assert first["id"] != second["id"]
    assert first_caller.claim_one(key="k")["lease_token"] == first["lease_token"]
    assert second_caller.claim_one(key="k")["lease_token"] == second["lease_token"]


def test_rotated_api_key_replays_enqueues_and_claims_of_its_predecessor(callers: Callers) -> None:
    old, new = callers.key(name="taking-over"), callers.key(name="taking-over")
    job = old.api.enqueue(key="k")
    lease = old.api.claim_one(key="k")
    callers.revoke(old)
    assert new.api.enqueue(key="k")["id"] == job["id"]
    assert new.api.claim_one(key="k")["lease_token"] == lease["lease_token"]
    assert new.api.complete(lease)["status"] == "settled"


def test_replayed_claim_returns_no_job_that_the_api_key_may_not_access(callers: Callers, queue: str) -> None:
    wide, narrow = callers.key(name="namesakes"), callers.key(f"work:{queue}-own", name="namesakes")
    wide.api.enqueue()
    wide.api.enqueue(queue=f"{queue}-own")
    lease = wide.api.claim_one(key="k")
    assert narrow.api.claim(queues=[f"{queue}-own"], key="k")["jobs"] == []
    assert wide.api.claim_one(key="k")["lease_token"] == lease["lease_token"]
