"""GET /queues, and how queues come into being."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.polls import Background


@pytest.fixture
def strict(dsn: str, db: TestDatabase, queue: str) -> Iterator[Api]:
    """A broker that makes no queues."""
    with threaded_broker(QUICK.model_copy(update={"create_queues": False}), dsn) as broker:
        yield Api(broker.http, queue)


def names(api: Api) -> list[str]:
    """Of this test's queues."""
    return [
        queue["name"] for page in api.pages("/queues") for queue in page if queue["name"].startswith(f"{api.queue}-")
    ]


def test_a_queue_comes_into_being_with_its_first_job(api: Api) -> None:
    assert names(api) == []
    api.enqueue(queue=f"{api.queue}-a")
    assert names(api) == [f"{api.queue}-a"]
    created = next(queue for page in api.pages("/queues") for queue in page if queue["name"] == f"{api.queue}-a")[
        "created_at"
    ]
    api.enqueue(queue=f"{api.queue}-a")
    assert (
        next(q for page in api.pages("/queues") for q in page if q["name"] == f"{api.queue}-a")["created_at"] == created
    )


def test_a_claim_makes_no_queue(api: Api) -> None:
    assert api.claim(queues=[f"{api.queue}-a"])["jobs"] == []
    assert names(api) == []


def test_a_refused_job_makes_no_queue(api: Api) -> None:
    api.post("/jobs", {"queue": f"{api.queue}-a", "job_type": "a b"}, status=422)
    assert names(api) == []


def test_many_first_jobs_at_once_make_one_queue_each(api: Api, background: Background) -> None:
    jobs = list(background.map(lambda n: api.enqueue(queue=f"{api.queue}-{n % 4}"), range(24)))
    assert sorted(names(api)) == [f"{api.queue}-{n}" for n in range(4)]
    assert [job["queue"] for job in jobs] == [f"{api.queue}-{n % 4}" for n in range(24)]


def test_queues_come_in_pages_in_the_order_of_their_names(api: Api) -> None:
    made = [f"{api.queue}-{name}" for name in ("b", "B", "a.1", "a-1", "a:1", "a1", "_", "A")[:6]]
    api.batch(*[{"queue": name} for name in made])
    pages = api.pages("/queues", limit=2)
    found = [queue["name"] for page in pages for queue in page]
    assert found == sorted(set(found))
    assert set(made) <= set(found)
    assert {len(page) for page in pages[:-1]} == {2}


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 1001), ("cursor", "x"), ("colour", "red")])
def test_a_bad_parameter_is_pointed_at(api: Api, name: str, value: Any) -> None:
    assert api.get("/queues", **{name: value}, status=422)["errors"][0]["pointer"] == f"/query/{name}"


def test_a_queue_that_another_broker_made_is_known_when_it_is_needed(api: Api, strict: Api) -> None:
    job = api.enqueue()
    assert strict.job(job["id"])["queue"] == api.queue
    assert strict.claim_one()["id"] == job["id"]
    assert strict.get("/jobs", queue=api.queue)["items"][0]["queue"] == api.queue


def test_a_broker_that_makes_no_queues_refuses_unknown_ones(api: Api, strict: Api) -> None:
    assert strict.post("/jobs", {"queue": f"{api.queue}-a", "job_type": "test"}, status=404)["code"] == "not_found"
    assert names(api) == []
    api.enqueue()
    assert strict.enqueue()["queue"] == api.queue


def test_an_unknown_queue_in_a_batch_is_pointed_at(api: Api, strict: Api) -> None:
    api.enqueue()
    problem = strict.batch({}, {"queue": f"{api.queue}-a"}, status=404)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/1/queue"]
    answer = strict.batch({}, {"queue": f"{api.queue}-a"}, atomic=False, status=207)
    assert [result["status"] for result in answer["results"]] == ["created", "rejected"]
    assert answer["results"][1]["problem"]["code"] == "not_found"


def test_a_repeated_batch_gives_the_first_answer_even_if_the_queue_is_there_by_now(api: Api, strict: Api) -> None:
    api.enqueue()
    jobs: list[Json] = [{}, {"queue": f"{api.queue}-a"}, {}]
    first = strict.batch(*jobs, atomic=False, key="k", status=207)
    api.enqueue(queue=f"{api.queue}-a")
    again = strict.batch(*jobs, atomic=False, key="k", status=207)
    told = [[(result["status"], result.get("job_id")) for result in answer["results"]] for answer in (first, again)]
    assert told[0] == told[1]
    assert (again["created"], again["rejected"]) == (2, 1)


def test_there_are_no_more_queues_than_allowed(api: Api, dsn: str, db: TestDatabase) -> None:
    api.enqueue()
    most = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL")
    with threaded_broker(QUICK.model_copy(update={"max_queues": most}), dsn) as broker:
        full = Api(broker.http, api.queue)
        assert full.enqueue()["queue"] == api.queue
        answer = broker.http.post("/jobs", json={"queue": f"{api.queue}-a", "job_type": "test"})
        assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)
        assert names(api) == []
