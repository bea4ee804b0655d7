"""Claims that carry settlements and wait: `wait_after_settle`.

The settlements are committed before the wait. Their results are returned with the jobs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.leases.conftest import ClaimStatements
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background, RawClaim, metric_value, parked_polls, wait_until_read

Eventually = Callable[[Callable[[], Any]], Any]


def settlement(job: Json, outcome: str = "complete", **fields: Any) -> Json:
    return {"job_id": job["id"], "lease_token": job["lease_token"], "outcome": outcome, **fields}


def statuses(response: Json) -> list[str]:
    return [result["status"] for result in response["settled"]]


@pytest.fixture
def held(quiet: Api) -> Json:
    """A job that a worker holds; the queue is empty."""
    quiet.enqueue()
    return quiet.claim_one()


@pytest.fixture
def impatient(quiet: Api) -> Iterator[Api]:
    """An API client that fails if the broker waits."""
    quiet.http.timeout = 15
    yield quiet
    quiet.http.timeout = 60


@pytest.fixture
def carrying(quiet: Api, held: Json) -> Json:
    """The body of a claim that settles the held job and waits."""
    return {"queues": [quiet.queue], "settle": [settlement(held)], "wait_after_settle": True, "wait_seconds": 25}


@pytest.mark.parametrize("config", [{}, {"max_running": 5}], ids=["sync match", "wake-up"])
def test_settlements_are_committed_before_the_wait_and_answered_with_the_jobs(
    quiet: Api, held: Json, carrying: Json, background: Background, eventually: Eventually, config: Json
) -> None:
    quiet.configure(**config)
    poll = background.submit(quiet.post, "/claim", carrying)
    eventually(lambda: parked_polls(quiet.http) == 1)
    assert quiet.job(held["id"])["state"] == "completed"
    job = quiet.enqueue()
    response = poll.result(20)
    assert response["settled"] == [{"job_id": held["id"], "status": "settled", "state": "completed", "attempt": 1}]
    assert ([job["id"] for job in response["jobs"]], response["poll_after_ms"]) == ([job["id"]], 0)


def test_worker_sends_one_request_per_job(quiet: Api, background: Background, eventually: Eventually) -> None:
    """Each claim of a worker settles the job of the claim before, and waits for the next job."""
    settle: list[Json] = []
    for _ in range(5):
        poll = background.claim(quiet, settle=settle, wait_after_settle=True)
        eventually(lambda: parked_polls(quiet.http) == 1)
        quiet.enqueue()
        response = poll.result(20)
        assert statuses(response) == ["settled"] * len(settle)
        settle = [settlement(job) for job in response["jobs"]]
        assert len(settle) == 1
    assert quiet.counts() == {"completed": 4, "running": 1}


@pytest.mark.parametrize("field", [{}, {"wait_after_settle": False}], ids=["absent", "false"])
def test_claim_with_settlements_does_not_wait_by_default(impatient: Api, carrying: Json, field: Json) -> None:
    del carrying["wait_after_settle"]
    response = impatient.post("/claim", carrying | field)
    assert (statuses(response), response["jobs"], response["poll_after_ms"]) == (["settled"], [], 0)


def test_wait_after_settle_without_jobs_ends_with_the_results(quiet: Api, carrying: Json) -> None:
    response = quiet.post("/claim", carrying | {"wait_seconds": 0.6})
    assert (statuses(response), response["jobs"], response["poll_after_ms"]) == (["settled"], [], 0)


def test_wait_after_settle_without_a_wait_has_poll_after_ms(impatient: Api, carrying: Json) -> None:
    del carrying["wait_seconds"]
    response = impatient.post("/claim", carrying)
    assert (statuses(response), response["jobs"], response["poll_after_ms"] > 0) == (["settled"], [], True)


@pytest.mark.parametrize("field", [{}, {"settle": []}], ids=["absent", "empty"])
def test_wait_after_settle_without_settlements_is_a_plain_wait(
    quiet: Api, background: Background, eventually: Eventually, field: Json
) -> None:
    poll = background.claim(quiet, wait_after_settle=True, **field)
    eventually(lambda: parked_polls(quiet.http) == 1)
    job = quiet.enqueue()
    response = poll.result(20)
    assert ([job["id"] for job in response["jobs"]], response["settled"]) == ([job["id"]], [])


def test_ready_job_is_claimed_without_waiting(impatient: Api, carrying: Json) -> None:
    job = impatient.enqueue()
    response = impatient.post("/claim", carrying)
    assert (statuses(response), [job["id"] for job in response["jobs"]]) == (["settled"], [job["id"]])


def test_job_that_the_claim_itself_releases_is_claimed_without_waiting(
    impatient: Api, held: Json, carrying: Json
) -> None:
    response = impatient.post("/claim", carrying | {"settle": [settlement(held, "release")]})
    assert (statuses(response), [job["id"] for job in response["jobs"]]) == (["settled"], [held["id"]])


def test_lost_lease_does_not_end_the_wait(
    quiet: Api, held: Json, carrying: Json, background: Background, eventually: Eventually
) -> None:
    settle = [settlement(held) | {"lease_token": "stale"}]
    poll = background.submit(quiet.post, "/claim", carrying | {"settle": settle})
    eventually(lambda: parked_polls(quiet.http) == 1)
    quiet.enqueue()
    response = poll.result(20)
    assert (statuses(response), len(response["jobs"])) == (["lease_lost"], 1)


@pytest.mark.parametrize(
    "field",
    [{"wait_after_settle": "yes"}, {"wait_after_settle": None}, {"max_jobs": 1001}, {"lease_seconds": 10**6}],
    ids=str,
)
def test_invalid_claim_settles_nothing_and_does_not_wait(
    impatient: Api, held: Json, carrying: Json, field: Json
) -> None:
    (error,) = impatient.post("/claim", carrying | field, status=422)["errors"]
    assert error["pointer"] == f"/{next(iter(field))}"
    assert impatient.complete(held)["status"] == "settled"


def test_invalid_settlement_settles_nothing_and_does_not_wait(impatient: Api, held: Json, carrying: Json) -> None:
    body = carrying | {"settle": [settlement(held), settlement(held, "snooze")]}
    (error,) = impatient.post("/claim", body, status=422)["errors"]
    assert error["pointer"] == "/settle/1/delay_seconds"
    assert impatient.complete(held)["status"] == "settled"


def test_settlements_stand_and_no_job_is_claimed_if_the_client_disconnects_during_the_wait(
    quiet: Api, quiet_broker: RunningBroker, held: Json, carrying: Json, eventually: Eventually
) -> None:
    before = metric_value(quiet.http, "claims_parked_left_total")
    claim = RawClaim(quiet_broker.base, carrying)
    eventually(lambda: parked_polls(quiet.http) == 1)
    claim.cut()
    eventually(lambda: parked_polls(quiet.http) == 0)
    assert metric_value(quiet.http, "claims_parked_left_total") == before + 1
    assert quiet.job(quiet.enqueue()["id"])["deliveries"] == 0
    assert quiet.job(held["id"])["state"] == "completed"


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
def test_settlements_stand_if_the_client_disconnects_while_a_woken_poll_claims(
    quiet: Api,
    quiet_broker: RunningBroker,
    held: Json,
    carrying: Json,
    claim_statements: ClaimStatements,
    eventually: Eventually,
    key: str | None,
) -> None:
    """The jobs are requeued at no cost; with an Idempotency-Key the repeated claim returns them."""
    before = metric_value(quiet.http, "claims_undone_total")
    quiet.configure(max_running=5)  # no sync match: the poll is woken and claims
    claim = RawClaim(quiet_broker.base, carrying, key=key)
    eventually(lambda: parked_polls(quiet.http) == 1)
    with claim_statements.held():
        job = quiet.enqueue()
        eventually(lambda: claim_statements.running() == 1)
        claim.cut()
        wait_until_read(quiet.http)
    eventually(lambda: parked_polls(quiet.http) == 0)
    again = quiet.post("/claim", carrying, key=key)
    assert statuses(again) == ["already_settled"]
    assert [(job["id"], job["attempt"]) for job in again["jobs"]] == [(job["id"], 1)]
    assert metric_value(quiet.http, "claims_undone_total") == before + (key is None)
    assert quiet.job(held["id"])["state"] == "completed"


@pytest.mark.parametrize(
    ("outcome", "fields"),
    [("complete", {}), ("fail", {"error": {"message": "it broke"}}), ("snooze", {"delay_seconds": 60})],
)
def test_repeated_claim_gets_the_same_results_and_the_same_leases(
    impatient: Api, held: Json, carrying: Json, outcome: str, fields: Json
) -> None:
    body = carrying | {"settle": [settlement(held, outcome, **fields)]}
    impatient.enqueue()
    first = impatient.post("/claim", body, key="k")
    assert (statuses(first), len(first["jobs"])) == (["settled"], 1)
    impatient.enqueue()
    again = impatient.post("/claim", body, key="k")
    assert again["settled"] == [{**first["settled"][0], "status": "already_settled"}]
    assert again["jobs"] == first["jobs"]


def test_claim_that_is_repeated_because_its_client_disconnected_during_the_wait_waits_again(
    quiet: Api, quiet_broker: RunningBroker, carrying: Json, background: Background, eventually: Eventually
) -> None:
    claim = RawClaim(quiet_broker.base, carrying, key="k")
    eventually(lambda: parked_polls(quiet.http) == 1)
    claim.cut()
    eventually(lambda: parked_polls(quiet.http) == 0)
    poll = background.submit(quiet.post, "/claim", carrying, key="k")
    eventually(lambda: parked_polls(quiet.http) == 1)
    job = quiet.enqueue()
    response = poll.result(20)
    assert (statuses(response), [job["id"] for job in response["jobs"]]) == (["already_settled"], [job["id"]])


@pytest.mark.parametrize("directive", ["drain", "stop"])
def test_directive_ends_the_wait_with_the_results(
    quiet: Api, carrying: Json, background: Background, eventually: Eventually, directive: str
) -> None:
    worker_id = f"{quiet.queue}-worker"
    poll = background.submit(quiet.post, "/claim", carrying | {"worker_id": worker_id})
    eventually(lambda: parked_polls(quiet.http) == 1)
    quiet.post(f"/workers/{worker_id}/{directive}")
    response = poll.result(20)
    assert (statuses(response), response["jobs"], response["directive"]) == (["settled"], [], directive)


@pytest.fixture
def one_poll_broker(quiet_db: TestDatabase) -> Iterator[RunningBroker]:
    """A broker that the test may drain. It parks one poll."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_parked_polls": 1}), quiet_db.dsn) as broker:
        yield broker


def test_draining_broker_ends_the_wait_and_settles_without_waiting(
    one_poll_broker: RunningBroker, quiet: Api, carrying: Json, background: Background, eventually: Eventually
) -> None:
    api, services = Api(one_poll_broker.http, quiet.queue), one_poll_broker.broker_services
    assert services is not None
    poll = background.submit(api.post, "/claim", carrying)
    eventually(lambda: services.pollers.open_claims == 1)
    services.drain()
    for expected, response in (("settled", poll.result(20)), ("already_settled", api.post("/claim", carrying))):
        assert (statuses(response), response["jobs"], response["poll_after_ms"] > 0) == ([expected], [], True)


def test_claim_over_the_limit_of_parked_polls_settles_without_waiting(
    one_poll_broker: RunningBroker, quiet: Api, carrying: Json, background: Background, eventually: Eventually
) -> None:
    api = Api(one_poll_broker.http, quiet.queue)
    waiting = background.claim(api)
    eventually(lambda: parked_polls(api.http) == 1)
    response = api.post("/claim", carrying)
    assert (statuses(response), response["jobs"], response["poll_after_ms"] > 0) == (["settled"], [], True)
    api.enqueue()
    assert len(waiting.result(20)["jobs"]) == 1
