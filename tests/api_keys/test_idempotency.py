"""An Idempotency-Key belongs to the caller who chose it: nobody else's call is answered with what it made."""

from tests.api_keys.conftest import Callers


def test_the_same_key_of_two_callers_makes_two_jobs(callers: Callers) -> None:
    one, other = callers.api(), callers.api()
    first, second = (api.enqueue(key="k") for api in (one, other))
    assert first["id"] != second["id"]
    assert [api.enqueue(key="k")["id"] for api in (one, other)] == [first["id"], second["id"]]


def test_another_callers_key_is_not_in_use_whatever_the_body(callers: Callers) -> None:
    one, other = callers.api(), callers.api()
    one.enqueue(key="k", payload=1)
    assert other.enqueue(key="k", payload=2)["payload"] == 2


def test_the_same_key_of_two_callers_makes_two_batches(callers: Callers) -> None:
    one, other = callers.api(), callers.api()
    batches = [api.batch({}, {}, key="k")["results"] for api in (one, other, one)]
    assert batches[0] == batches[2]
    assert {result["job_id"] for result in batches[0]}.isdisjoint(result["job_id"] for result in batches[1])


def test_a_claim_is_not_repeated_by_another_caller(callers: Callers) -> None:
    one, other = callers.api(), callers.api()
    one.enqueue_many(2)
    first, second = one.claim_one(key="k"), other.claim_one(key="k")
    assert first["id"] != second["id"]
    assert one.claim_one(key="k")["lease_token"] == first["lease_token"]
    assert other.claim_one(key="k")["lease_token"] == second["lease_token"]


def test_a_key_that_takes_over_goes_on_with_what_the_old_one_began(callers: Callers) -> None:
    old, new = callers.key(name="taking-over"), callers.key(name="taking-over")
    job = old.api.enqueue(key="k")
    held = old.api.claim_one(key="k")
    callers.revoke(old)
    assert new.api.enqueue(key="k")["id"] == job["id"]
    assert new.api.claim_one(key="k")["lease_token"] == held["lease_token"]
    assert new.api.complete(held)["status"] == "settled"


def test_a_key_that_reaches_less_is_not_told_what_its_namesake_claimed(callers: Callers, queue: str) -> None:
    wide, narrow = callers.key(name="namesakes"), callers.key(f"work:{queue}-own", name="namesakes")
    wide.api.enqueue()
    wide.api.enqueue(queue=f"{queue}-own")
    held = wide.api.claim_one(key="k")
    assert narrow.api.claim(queues=[f"{queue}-own"], key="k")["jobs"] == []
    assert wide.api.claim_one(key="k")["lease_token"] == held["lease_token"]
