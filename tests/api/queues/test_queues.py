"""GET /queues, and the creation of queues by enqueue."""

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background


def names(api: Api) -> list[str]:
    """The names of the queues of this test."""
    return [
        queue["name"] for page in api.pages("/queues") for queue in page if queue["name"].startswith(f"{api.queue}-")
    ]


def test_first_job_creates_its_queue(api: Api) -> None:
    assert names(api) == []
    api.enqueue(queue=f"{api.queue}-a")
    assert names(api) == [f"{api.queue}-a"]
    created = next(queue for page in api.pages("/queues") for queue in page if queue["name"] == f"{api.queue}-a")[
        "created_at"
    ]
    api.enqueue(queue=f"{api.queue}-a")
    assert (
        next(queue for page in api.pages("/queues") for queue in page if queue["name"] == f"{api.queue}-a")[
            "created_at"
        ]
        == created
    )


def test_claim_creates_no_queue(api: Api) -> None:
    assert api.claim(queues=[f"{api.queue}-a"])["jobs"] == []
    assert names(api) == []


def test_rejected_job_creates_no_queue(api: Api) -> None:
    api.post("/jobs", {"queue": f"{api.queue}-a", "job_type": "a b"}, status=422)
    assert names(api) == []


def test_concurrent_first_jobs_create_each_queue_once(api: Api, background: Background) -> None:
    jobs = list(background.map(lambda n: api.enqueue(queue=f"{api.queue}-{n % 4}"), range(24)))
    assert sorted(names(api)) == [f"{api.queue}-{n}" for n in range(4)]
    assert [job["queue"] for job in jobs] == [f"{api.queue}-{n % 4}" for n in range(24)]


def test_list_returns_queues_sorted_by_name_in_pages(api: Api) -> None:
    created_names = [f"{api.queue}-{name}" for name in ("b", "B", "a.1", "a-1", "a:1", "a1", "_", "A")[:6]]
    api.batch(*[{"queue": name} for name in created_names])
    pages = api.pages("/queues", limit=2)
    listed_names = [queue["name"] for page in pages for queue in page]
    assert listed_names == sorted(set(listed_names))
    assert set(created_names) <= set(listed_names)
    assert {len(page) for page in pages[:-1]} == {2}


def test_queue_created_by_another_broker_is_found_on_first_use(api: Api, no_creation_api: Api) -> None:
    job = api.enqueue()
    assert no_creation_api.job(job["id"])["queue"] == api.queue
    assert no_creation_api.claim_one()["id"] == job["id"]
    assert no_creation_api.get("/jobs", queue=api.queue)["items"][0]["queue"] == api.queue


def test_enqueue_into_an_unknown_queue_is_rejected_if_create_queues_is_off(api: Api, no_creation_api: Api) -> None:
    assert (
        no_creation_api.post("/jobs", {"queue": f"{api.queue}-a", "job_type": "test"}, status=404)["code"]
        == "not_found"
    )
    assert names(api) == []
    api.enqueue()
    assert no_creation_api.enqueue()["queue"] == api.queue


def test_unknown_queue_in_a_batch_is_rejected_with_a_pointer(api: Api, no_creation_api: Api) -> None:
    api.enqueue()
    problem = no_creation_api.batch({}, {"queue": f"{api.queue}-a"}, status=404)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/1/queue"]
    response = no_creation_api.batch({}, {"queue": f"{api.queue}-a"}, atomic=False, status=207)
    assert [result["status"] for result in response["results"]] == ["created", "rejected"]
    assert response["results"][1]["problem"]["code"] == "not_found"


def test_replayed_batch_returns_the_first_result_even_if_the_queue_exists_now(api: Api, no_creation_api: Api) -> None:
    api.enqueue()
    jobs: list[Json] = [{}, {"queue": f"{api.queue}-a"}, {}]
    first = no_creation_api.batch(*jobs, atomic=False, key="k", status=207)
    api.enqueue(queue=f"{api.queue}-a")
    again = no_creation_api.batch(*jobs, atomic=False, key="k", status=207)
    results = [
        [(result["status"], result.get("job_id")) for result in response["results"]] for response in (first, again)
    ]
    assert results[0] == results[1]
    assert (again["created"], again["rejected"]) == (2, 1)


def test_enqueue_creates_no_queue_above_max_queues(api: Api, dsn: str, db: TestDatabase) -> None:
    api.enqueue()
    limit = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL")
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_queues": limit}), dsn) as broker:
        limited = Api(broker.http, api.queue)
        assert limited.enqueue()["queue"] == api.queue
        response = broker.http.post("/jobs", json={"queue": f"{api.queue}-a", "job_type": "test"})
        assert (response.status_code, "Retry-After" in response.headers) == (429, True)
        assert names(api) == []
