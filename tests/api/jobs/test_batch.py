"""POST /jobs/batch."""

from typing import Any

from tests.api_client import Api
from tests.database import TestDatabase
from tests.table import table

BAD = {"job_type": "a b"}


def test_batch_results_are_in_the_order_of_the_request(api: Api) -> None:
    answer = api.batch(*[{"payload": n} for n in range(20)])
    assert (answer["created"], answer["duplicates"]) == (20, 0)
    assert [result["index"] for result in answer["results"]] == list(range(20))
    assert {result["status"] for result in answer["results"]} == {"created"}
    assert [api.job(result["job_id"])["payload"] for result in answer["results"]] == list(range(20))


def test_batch_may_span_queues(api: Api) -> None:
    queues = [f"{api.queue}-{n % 3}" for n in range(9)]
    answer = api.batch(*[{"queue": queue} for queue in queues])
    assert [api.job(result["job_id"])["queue"] for result in answer["results"]] == queues


def test_jobs_of_a_batch_are_claimed_in_its_order(api: Api) -> None:
    ids = api.enqueue_many(10)
    assert [job["id"] for job in api.claim(max_jobs=10)["jobs"]] == ids


@table(
    ("field", "values"),
    [
        ("priority", [7, 7, 7]),
        ("priority", [7, 0, 7]),
        ("max_attempts", [3, 4, 3]),
        ("job_type", ["a", "a", "b"]),
        ("run_at", ["2020-11-16T12:00:00Z", "2020-11-16T12:00:00Z", "2020-11-16T12:00:01Z"]),
        ("group", ["a", "a", "a"]),
        ("group", [None, "a", None]),
        ("tags", [["x"], None, ["x"]]),
        ("metadata", [None, {"a": 1}, {"a": 1}]),
    ],
)
def test_each_job_of_a_batch_keeps_its_own_values(api: Api, field: str, values: list[Any]) -> None:
    """A value that all jobs share is sent to the database once."""
    answer = api.batch(
        *[{"payload": n} | ({field: value} if value is not None else {}) for n, value in enumerate(values)]
    )
    stored = [api.job(result["job_id"]) for result in answer["results"]]
    absent: Any = {"tags": [], "metadata": {}}.get(field)
    assert [job.get(field) for job in stored] == [absent if value is None else value for value in values]
    assert [job["payload"] for job in stored] == [0, 1, 2]


def test_jobs_of_a_batch_share_a_lane_unless_their_group_has_another(api: Api, db: TestDatabase) -> None:
    api.configure(lanes=256)
    api.enqueue_many(20)
    assert db.value("SELECT count(DISTINCT lane) FROM jobs") == 1
    db.value("DELETE FROM jobs")
    api.batch(*[{"group": str(n)} for n in range(20)])
    assert db.value("SELECT count(DISTINCT lane) FROM jobs") > 1


def test_atomic_batch_with_an_invalid_job_stores_nothing(api: Api, db: TestDatabase) -> None:
    problem = api.batch({}, {}, {}, {"queue": "no spaces"}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == ["/jobs/3/queue"]
    assert db.value("SELECT count(*) FROM jobs") == 0
    api.get(f"/queues/{api.queue}/stats", status=404)


def test_problem_points_at_every_invalid_job_of_a_batch(api: Api) -> None:
    problem = api.batch(BAD, {}, {"delay_second": 1}, {"run_at": "2026-01-01T00:00:00"}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == [
        "/jobs/0/job_type",
        "/jobs/2/delay_second",
        "/jobs/3/run_at",
    ]


def test_non_atomic_batch_stores_valid_jobs_and_reports_invalid_ones(api: Api) -> None:
    answer = api.batch({}, BAD, {"payload": "x" * 300_000}, {}, atomic=False, status=207)
    assert (answer["created"], answer["duplicates"], answer["rejected"]) == (2, 0, 2)
    assert [result["status"] for result in answer["results"]] == ["created", "rejected", "rejected", "created"]
    invalid, large = answer["results"][1]["problem"], answer["results"][2]["problem"]
    assert (invalid["code"], invalid["errors"][0]["pointer"]) == ("validation_failed", "/jobs/1/job_type")
    assert (large["code"], large["status"]) == ("payload_too_large", 413)
    assert api.counts() == {"ready": 2}


def test_non_atomic_batch_may_have_only_invalid_jobs(api: Api) -> None:
    answer = api.batch(BAD, BAD, atomic=False, status=207)
    assert (answer["created"], answer["rejected"]) == (0, 2)


def test_atomic_batch_response_has_no_rejected_count(api: Api) -> None:
    assert "rejected" not in api.batch({})
    assert api.batch({}, atomic=False, status=207)["rejected"] == 0


def test_batch_has_at_most_a_thousand_jobs(api: Api) -> None:
    problem = api.batch(*[{}] * 1001, status=413)
    assert (problem["code"], problem["limit"]) == ("batch_too_large", 1000)
    assert api.batch(*[{}] * 1000)["created"] == 1000


def test_batch_above_eight_mebibytes_is_rejected(api: Api) -> None:
    problem = api.batch(*[{"payload": "x" * 250_000}] * 34, status=413)
    assert problem["limit"] == 8 * 1024 * 1024


def test_payload_above_the_limit_rejects_the_whole_batch(api: Api) -> None:
    problem = api.batch({}, {"payload": "x" * 300_000}, status=413)
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("payload_too_large", "/jobs/1/payload")
    assert api.claim()["jobs"] == []


@table(
    ("body", "pointer"),
    [
        ({"jobs": []}, "/jobs"),
        ({}, "/jobs"),
        ({"jobs": {}}, "/jobs"),
        ({"jobs": [{"job_type": "t"}], "atomc": False}, "/atomc"),
        ({"jobs": [3]}, "/jobs/0"),
        ({"jobs": [{}]}, "/jobs/0/job_type"),
    ],
)
def test_problem_points_at_the_invalid_part_of_a_batch(api: Api, body: Any, pointer: str) -> None:
    assert api.post("/jobs/batch", body, status=422)["errors"][0]["pointer"] == pointer


def test_job_in_a_batch_may_have_a_ref(api: Api) -> None:
    assert api.batch({"ref": "first"})["created"] == 1
