"""The long poll: who is woken, how many, and what waiting costs."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import httpx
import pytest

from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.leases.conftest import ClaimStatements
from tests.polls import Background, counted, jobs_of, parked

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def looked_at(quiet: Api) -> Api:
    """Where polls have to look for jobs, each by itself: none is handed over at a gate."""
    quiet.configure(max_running=1000)
    return quiet


def _parked_in_turn(
    queues: list[list[str]], api: Api, background: Background, eventually: Eventually
) -> "list[Future[Json]]":
    polls: list[Future[Json]] = []
    for names in queues:
        polls.append(background.claim(api, queues=names, job_types=["t"]))
        eventually(lambda: parked(api.http) == len(polls))
    return polls


def _answered(polls: "list[Future[Json]]", count: int) -> bool:
    return sum(poll.done() for poll in polls) == count


def test_a_wait_that_brings_nothing_ends_with_an_empty_list(quiet: Api) -> None:
    answer = quiet.claim(wait_seconds=0.05)
    assert (answer["jobs"], answer["poll_after_ms"]) == ([], 0)


def test_a_job_that_is_there_is_handed_out_without_waiting(quiet: Api, claim_statements: ClaimStatements) -> None:
    quiet.enqueue()
    assert len(quiet.claim(wait_seconds=25)["jobs"]) == 1
    assert claim_statements.count() == 1


def test_a_claim_that_settles_never_waits(quiet: Api) -> None:
    quiet.enqueue()
    held = quiet.claim_one()
    done = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    with httpx.Client(base_url=quiet.http.base_url, timeout=15) as impatient:
        answer = impatient.post("/claim", json={"queues": [quiet.queue], "wait_seconds": 25, "settle": [done]}).json()
    assert [result["status"] for result in answer["settled"]] == ["settled"]
    assert answer["jobs"] == []


def test_settled_results_come_in_the_order_of_the_request_beside_new_jobs(api: Api) -> None:
    api.enqueue(), api.enqueue(), api.enqueue()
    first, second = api.claim(max_jobs=2)["jobs"]
    items = [
        {"job_id": second["id"], "lease_token": second["lease_token"], "outcome": "complete"},
        {"job_id": first["id"], "lease_token": "stale", "outcome": "complete"},
        {"job_id": first["id"], "lease_token": first["lease_token"], "outcome": "release"},
    ]
    answer = api.claim(max_jobs=10, settle=items)
    assert [(result["job_id"], result["status"]) for result in answer["settled"]] == [
        (second["id"], "settled"),
        (first["id"], "lease_lost"),
        (first["id"], "settled"),
    ]
    assert len(answer["jobs"]) == 2
    assert answer["jobs"][0]["id"] == first["id"]


def test_only_as_many_polls_look_as_there_are_jobs(
    looked_at: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    polls = background.claims(20, looked_at)
    eventually(lambda: parked(looked_at.http) == claim_statements.count() == 20)
    claim_statements.forget()
    ids = {looked_at.enqueue()["id"] for _ in range(5)}
    eventually(lambda: {job["id"] for job in jobs_of(polls)} == ids)
    assert claim_statements.count() == 5
    assert parked(looked_at.http) == 15
    looked_at.post("/jobs/batch", {"jobs": [{"queue": looked_at.queue, "job_type": "rest"}] * 15}, status=201)
    eventually(lambda: all(poll.done() for poll in polls))
    assert claim_statements.count() == 20


def test_polls_are_served_first_come_first_served(quiet: Api, background: Background, eventually: Eventually) -> None:
    for poll in _parked_in_turn([[quiet.queue]] * 3, quiet, background, eventually):
        job = quiet.enqueue(job_type="t")
        assert poll.result(20)["jobs"][0]["id"] == job["id"]


def test_the_poll_that_takes_the_job_type_is_woken_and_no_other(
    looked_at: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    wrong = background.claims(3, looked_at, job_types=["b"])
    eventually(lambda: parked(looked_at.http) == 3)
    right = background.claim(looked_at, job_types=["a"])
    eventually(lambda: parked(looked_at.http) == claim_statements.count() == 4)
    claim_statements.forget()
    looked_at.enqueue(job_type="a")
    assert len(right.result(20)["jobs"]) == 1
    assert claim_statements.count() == 1
    looked_at.post("/jobs/batch", {"jobs": [{"queue": looked_at.queue, "job_type": "b"}] * 3}, status=201)
    assert all(len(poll.result(20)["jobs"]) == 1 for poll in wrong)


def test_a_poll_that_leaves_wakes_nobody(
    looked_at: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    staying = background.claim(looked_at)
    eventually(lambda: parked(looked_at.http) == 1)
    assert looked_at.claim(wait_seconds=0.01)["jobs"] == []
    looks = claim_statements.count()
    looked_at.enqueue()
    assert len(staying.result(20)["jobs"]) == 1
    assert claim_statements.count() == looks + 1


def test_a_word_that_its_poll_did_not_need_goes_to_one_that_does(
    quiet: Api, background: Background, claim_statements: ClaimStatements, eventually: Eventually
) -> None:
    """The poll of both queues is called for the second one's job, and half the time comes home with the first one's."""
    second = f"{quiet.queue}-second"
    job: Json = {
        "job_type": "t",
        "group": "g",
    }  # jobs of groups are not handed over, and who asks for a type has a statement of its own
    for _ in range(10):
        polls = _parked_in_turn([[quiet.queue], [quiet.queue, second], [second]], quiet, background, eventually)
        with claim_statements.held():
            quiet.post(
                "/jobs/batch", {"jobs": [{"queue": queue, **job} for queue in (quiet.queue, second)]}, status=201
            )
            eventually(lambda: claim_statements.running() == 2)
        eventually(partial(_answered, polls, 2))
        quiet.enqueue(queue=second if polls[0].done() else quiet.queue, **job)
        assert all(len(poll.result(20)["jobs"]) == 1 for poll in polls)


def test_parked_polls_hold_no_connection(
    quiet: Api, quiet_db: TestDatabase, background: Background, eventually: Eventually
) -> None:
    """The pool has four connections: fifty parked polls that held one each would stop the broker."""
    polls = background.claims(50, quiet)
    eventually(lambda: parked(quiet.http) == 50)
    assert quiet.claim(queues=["another"])["jobs"] == []
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'longshore'"
    )
    assert quiet_db.value(sessions) <= 4
    eventually(lambda: quiet_db.value(f"{sessions} AND state <> 'idle'") == 0)
    quiet.post("/jobs/batch", {"jobs": [{"queue": quiet.queue, "job_type": "t"}] * 50}, status=201)
    assert len({poll.result(20)["jobs"][0]["id"] for poll in polls}) == 50


def test_parked_polls_are_counted(quiet: Api, background: Background, eventually: Eventually) -> None:
    poll = background.claim(quiet)
    eventually(lambda: counted(quiet.http, "polls_parked") == 1)
    quiet.enqueue()
    poll.result(20)
    assert counted(quiet.http, "polls_parked") == 0


@pytest.fixture
def crowded(db: TestDatabase) -> Iterator[RunningBroker]:
    with threaded_broker(QUICK.model_copy(update={"max_parked_polls": 2}), db.dsn) as broker:
        yield broker


def test_above_the_cap_a_poll_is_sent_away_with_a_time_to_come_back(
    crowded: RunningBroker, queue: str, background: Background, eventually: Eventually
) -> None:
    api = Api(crowded.http, queue)
    parked_ones = background.claims(2, api)
    eventually(lambda: parked(crowded.http) == 2)
    answer = api.claim(wait_seconds=25)
    assert answer["jobs"] == []
    assert answer["poll_after_ms"] > 0
    api.enqueue(), api.enqueue()
    assert all(len(poll.result(20)["jobs"]) == 1 for poll in parked_ones)
    assert api.claim(wait_seconds=0.01)["poll_after_ms"] == 0
