"""A claim with an Idempotency-Key can be repeated: same leases, same tokens, same order."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background, metric_value, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]
Expire = Callable[[Json], None]


def leases(response: Json) -> list[tuple[str, str]]:
    return [(job["id"], job["lease_token"]) for job in response["jobs"]]


def test_a_repeated_claim_gets_the_same_leases_in_the_same_order(api: Api) -> None:
    before = metric_value(api.http, "claims_replayed_total")
    other = f"{api.queue}-other"
    for priority, queue in ((0, api.queue), (5, api.queue), (9, other)):
        api.enqueue(priority=priority, queue=queue)
    first = api.claim(key="k", max_jobs=10, queues=[api.queue, other])
    assert len(first["jobs"]) == 3
    api.enqueue(priority=100)
    again = api.claim(key="k", max_jobs=10, queues=[api.queue, other])
    assert again["jobs"] == first["jobs"]
    assert metric_value(api.http, "claims_replayed_total") == before + 3


def test_repeated_claim_is_identified_by_its_key_whatever_the_body(api: Api) -> None:
    api.enqueue(), api.enqueue()
    first = api.claim(key="k", max_jobs=2)
    again = api.claim(key="k", max_jobs=1, queues=["elsewhere"], job_types=["x"], worker_id="w", lease_seconds=7)
    assert leases(again) == leases(first)


def test_claim_with_another_key_gets_other_leases(api: Api) -> None:
    api.enqueue(), api.enqueue()
    assert leases(api.claim(key="k1")) != leases(api.claim(key="k2"))


def test_an_enqueue_and_a_claim_may_use_the_same_key(api: Api) -> None:
    job = api.post("/jobs", {"queue": api.queue, "job_type": "t"}, status=201, key="k")
    assert api.claim_one(key="k")["id"] == job["id"]


def test_repeated_claim_omits_settled_leases(api: Api) -> None:
    for _ in range(4):
        api.enqueue()
    first = api.claim(key="k", max_jobs=4)
    api.complete(first["jobs"][1])
    api.fail(first["jobs"][2])
    api.enqueue()
    assert leases(api.claim(key="k", max_jobs=4)) == [leases(first)[0], leases(first)[3]]


def test_repeated_claim_is_empty_after_all_leases_were_settled(api: Api) -> None:
    api.enqueue(), api.enqueue()
    for job in api.claim(key="k", max_jobs=2)["jobs"]:
        api.complete(job)
    left = api.enqueue()
    assert api.claim(key="k", max_jobs=2)["jobs"] == []
    assert api.job(left["id"])["state"] == "ready"


def test_a_repeated_claim_whose_leases_were_settled_does_not_wait(quiet: Api) -> None:
    quiet.enqueue()
    quiet.complete(quiet.claim_one(key="k"))
    quiet.http.timeout = 15
    try:
        assert quiet.claim(key="k", wait_seconds=25)["jobs"] == []
    finally:
        quiet.http.timeout = 60


def test_repeated_claim_claims_again_after_all_leases_expired(api: Api, expire: Expire) -> None:
    job = api.enqueue()
    first = api.claim_one(key="k")
    expire(job)
    again = api.claim_one(key="k")
    assert again["lease_token"] != first["lease_token"]
    assert (again["attempt"], again["deliveries"]) == (2, 2)
    assert leases(api.claim(key="k")) == [(job["id"], again["lease_token"])]


def test_repeated_claim_omits_expired_leases(api: Api, expire: Expire) -> None:
    for _ in range(2):
        api.enqueue()
    first = api.claim(key="k", max_jobs=2)
    expire(first["jobs"][0])
    assert leases(api.claim(key="k", max_jobs=2)) == leases(first)[1:]


def test_repeated_claim_omits_a_lease_that_another_worker_has_claimed_since(api: Api, expire: Expire) -> None:
    job = api.enqueue()
    api.claim_one(key="k")
    expire(job)
    taken_over = api.claim_one()
    assert api.claim(key="k")["jobs"] == []
    assert api.complete(taken_over)["status"] == "settled"


def test_repeated_claim_claims_again_after_an_empty_one(api: Api) -> None:
    assert api.claim(key="k")["jobs"] == []
    job = api.enqueue()
    assert api.claim_one(key="k")["id"] == job["id"]


def test_claim_with_a_key_waits_and_is_woken_like_any_other(
    quiet: Api, background: Background, eventually: Eventually
) -> None:
    poll = background.claim(quiet, key="k")
    eventually(lambda: parked_polls(quiet.http) == 1)
    job = quiet.enqueue()
    assert [lease[0] for lease in leases(poll.result(20))] == [job["id"]]
    assert leases(quiet.claim(key="k")) == leases(poll.result())


def test_concurrent_claims_with_one_key_get_the_same_leases(api: Api, background: Background) -> None:
    for number in range(10):
        for _ in range(6):
            api.enqueue()
        responses = background.together(*[lambda key=f"k{number}": leases(api.claim(key=key, max_jobs=2))] * 8)
        assert len(responses[0]) == 2
        assert responses == [responses[0]] * 8


def test_concurrent_waiting_pollers_with_one_key_get_the_same_lease(
    quiet: Api, background: Background, eventually: Eventually
) -> None:
    polls = background.claims(3, quiet, key="k")
    eventually(lambda: parked_polls(quiet.http) == 3)
    quiet.post("/jobs/batch", {"jobs": [{"queue": quiet.queue, "job_type": "t"}] * 3}, status=201)
    responses = [leases(poll.result(20)) for poll in polls]
    assert responses == [responses[0]] * 3
    assert len(quiet.claim(max_jobs=5)["jobs"]) == 2


def test_many_claims_with_keys_on_an_unknown_queue_do_not_exhaust_two_connections(
    db: TestDatabase, queue: str, background: Background
) -> None:
    """No claim may hold one connection and wait for another: all would wait for each other."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"pool_size": 2}), db.dsn) as broker:
        api = Api(broker.http, queue)
        responses = background.together(*[partial(api.claim, key=f"{queue}-{number}") for number in range(20)])
    assert [response["jobs"] for response in responses] == [[]] * 20
