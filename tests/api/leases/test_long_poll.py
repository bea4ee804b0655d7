"""Long polls: which pollers are woken, how many, and what waiting costs."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from tests.api.leases.conftest import ClaimStatements
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background, jobs_of_finished_polls, metric_value, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def limited(quiet: Api) -> Api:
    """A queue with a limit: sync match does not apply, so every poller claims for itself."""
    quiet.configure(max_running=1000)
    return quiet


def _park_one_by_one(
    queues: list[list[str]], api: Api, background: Background, eventually: Eventually
) -> "list[Future[Json]]":
    polls: list[Future[Json]] = []
    for names in queues:
        polls.append(background.claim(api, queues=names, job_types=["t"]))
        eventually(lambda: parked_polls(api.http) == len(polls))
    return polls


def _are_answered(polls: "list[Future[Json]]", count: int) -> bool:
    return sum(poll.done() for poll in polls) == count


def test_wait_without_a_job_ends_with_an_empty_list(quiet: Api) -> None:
    response = quiet.claim(wait_seconds=0.6)
    assert (response["jobs"], response["poll_after_ms"]) == ([], 0)


def test_ready_job_is_claimed_without_waiting(quiet: Api, claim_statements: ClaimStatements) -> None:
    quiet.enqueue()
    assert len(quiet.claim(wait_seconds=25)["jobs"]) == 1
    assert claim_statements.count() == 1


def test_claim_returns_settle_results_in_request_order_and_new_jobs(api: Api) -> None:
    api.enqueue(), api.enqueue(), api.enqueue()
    first, second = api.claim(max_jobs=2)["jobs"]
    items = [
        {"job_id": second["id"], "lease_token": second["lease_token"], "outcome": "complete"},
        {"job_id": first["id"], "lease_token": "stale", "outcome": "complete"},
        {"job_id": first["id"], "lease_token": first["lease_token"], "outcome": "release"},
    ]
    response = api.claim(max_jobs=10, settle=items)
    assert [(result["job_id"], result["status"]) for result in response["settled"]] == [
        (second["id"], "settled"),
        (first["id"], "lease_lost"),
        (first["id"], "settled"),
    ]
    assert len(response["jobs"]) == 2
    assert response["jobs"][0]["id"] == first["id"]


def test_each_job_wakes_a_single_poller(
    limited: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    polls = background.claims(20, limited)
    eventually(lambda: parked_polls(limited.http) == claim_statements.count() == 20)
    claim_statements.forget()
    ids = {limited.enqueue()["id"] for _ in range(5)}
    eventually(lambda: {job["id"] for job in jobs_of_finished_polls(polls)} == ids)
    assert claim_statements.count() == 5
    assert parked_polls(limited.http) == 15
    limited.post("/jobs/batch", {"jobs": [{"queue": limited.queue, "job_type": "rest"}] * 15}, status=201)
    eventually(lambda: all(poll.done() for poll in polls))
    assert claim_statements.count() == 20


def test_pollers_are_served_first_come_first_served(quiet: Api, background: Background, eventually: Eventually) -> None:
    for poll in _park_one_by_one([[quiet.queue]] * 3, quiet, background, eventually):
        job = quiet.enqueue(job_type="t")
        assert poll.result(20)["jobs"][0]["id"] == job["id"]


def test_only_a_poller_of_the_job_type_is_woken(
    limited: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    wrong = background.claims(3, limited, job_types=["b"])
    eventually(lambda: parked_polls(limited.http) == 3)
    right = background.claim(limited, job_types=["a"])
    eventually(lambda: parked_polls(limited.http) == claim_statements.count() == 4)
    claim_statements.forget()
    limited.enqueue(job_type="a")
    assert len(right.result(20)["jobs"]) == 1
    assert claim_statements.count() == 1
    limited.post("/jobs/batch", {"jobs": [{"queue": limited.queue, "job_type": "b"}] * 3}, status=201)
    assert all(len(poll.result(20)["jobs"]) == 1 for poll in wrong)


def test_poller_whose_wait_ends_wakes_no_other(
    limited: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    waiting = background.claim(limited)
    eventually(lambda: parked_polls(limited.http) == 1)
    assert limited.claim(wait_seconds=0.01)["jobs"] == []
    before = claim_statements.count()
    limited.enqueue()
    assert len(waiting.result(20)["jobs"]) == 1
    assert claim_statements.count() == before + 1


@pytest.mark.slow
def test_unconsumed_wake_up_goes_to_another_poller(
    quiet: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    """The poller of both queues is woken for the job of the second one.

    Half of the time it claims the job of the first one instead.
    """
    second = f"{quiet.queue}-second"
    job: Json = {
        "job_type": "t",
        "group": "g",
    }  # jobs with a group are not matched, and claims with job types do not share a statement
    for _ in range(10):
        polls = _park_one_by_one([[quiet.queue], [quiet.queue, second], [second]], quiet, background, eventually)
        with claim_statements.held():
            quiet.post(
                "/jobs/batch", {"jobs": [{"queue": queue, **job} for queue in (quiet.queue, second)]}, status=201
            )
            eventually(lambda: claim_statements.running() == 2)
        eventually(partial(_are_answered, polls, 2))
        quiet.enqueue(queue=second if polls[0].done() else quiet.queue, **job)
        assert all(len(poll.result(20)["jobs"]) == 1 for poll in polls)


def test_waiting_pollers_hold_no_database_connection(
    quiet: Api, quiet_db: TestDatabase, background: Background, eventually: Eventually
) -> None:
    """The pool has four connections: fifty waiting pollers with one each would stop the broker."""
    polls = background.claims(50, quiet)
    eventually(lambda: parked_polls(quiet.http) == 50)
    assert quiet.claim(queues=["another"])["jobs"] == []
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'longshore'"
    )
    assert quiet_db.value(sessions) <= 4
    eventually(lambda: quiet_db.value(f"{sessions} AND state <> 'idle'") == 0)
    quiet.post("/jobs/batch", {"jobs": [{"queue": quiet.queue, "job_type": "t"}] * 50}, status=201)
    assert len({poll.result(20)["jobs"][0]["id"] for poll in polls}) == 50


def test_metric_counts_parked_polls(quiet: Api, background: Background, eventually: Eventually) -> None:
    poll = background.claim(quiet)
    eventually(lambda: metric_value(quiet.http, "polls_parked") == 1)
    quiet.enqueue()
    poll.result(20)
    assert metric_value(quiet.http, "polls_parked") == 0


@pytest.fixture
def two_poll_broker(db: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_parked_polls": 2}), db.dsn) as broker:
        yield broker


def test_poller_above_max_parked_polls_is_refused_with_poll_after_ms(
    two_poll_broker: RunningBroker, queue: str, background: Background, eventually: Eventually
) -> None:
    api = Api(two_poll_broker.http, queue)
    waiting_polls = background.claims(2, api)
    eventually(lambda: parked_polls(two_poll_broker.http) == 2)
    response = api.claim(wait_seconds=25)
    assert response["jobs"] == []
    assert response["poll_after_ms"] > 0
    api.enqueue(), api.enqueue()
    assert all(len(poll.result(20)["jobs"]) == 1 for poll in waiting_polls)
    assert api.claim(wait_seconds=0.6)["poll_after_ms"] == 0
