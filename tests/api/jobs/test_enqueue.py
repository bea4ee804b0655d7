"""POST /jobs."""

from typing import Any
from uuid import UUID

import httpx

from tests.api_client import Api
from tests.table import table


def test_enqueued_job_is_ready_and_returned_as_stored(api: Api) -> None:
    job = api.enqueue(payload={"to": "ada"}, priority=7, group="g", max_attempts=3, tags=["a", "b"], metadata={"n": 1})
    assert job["state"] == "ready"
    assert api.job(job["id"]) == job


def test_enqueue_requires_only_the_job_type(api: Api) -> None:
    job = api.post("/jobs", {"job_type": "bare"}, status=201)
    assert (job["queue"], job["payload"], job["priority"], job["tags"], job["metadata"]) == ("default", {}, 0, [], {})
    assert (job["attempt"], job["crashes"], job["deliveries"], job["replay_count"]) == (0, 0, 0, 0)


def test_unset_fields_of_a_job_are_absent(api: Api) -> None:
    job = api.enqueue()
    assert None not in job.values()
    assert (
        not {"started_at", "finished_at", "result", "error", "group", "worker_id", "state_reason", "lease_token"}
        & job.keys()
    )


def test_location_header_is_the_url_of_the_job(http: httpx.Client) -> None:
    answer = http.post("/jobs", json={"job_type": "test"})
    assert http.get(answer.headers["Location"]).json()["id"] == answer.json()["id"]


def test_job_ids_are_increasing_uuids_of_version_7(api: Api) -> None:
    ids = [api.enqueue()["id"] for _ in range(5)]
    assert ids == sorted(ids)
    assert {UUID(job_id).version for job_id in ids} == {7}


@table("payload", [None, {}, [], "", 0, False, {"deep": [{"a": None}]}])
def test_payload_may_be_any_json(api: Api, payload: Any) -> None:
    job = api.enqueue(payload=payload)
    assert job["payload"] == payload
    assert api.job(job["id"])["payload"] == payload
    assert api.claim_one()["payload"] == payload


def test_null_payload_stays_null(http: httpx.Client) -> None:
    job = http.post("/jobs", content=b'{"job_type": "test", "payload": null}').json()
    assert http.get(f"/jobs/{job['id']}").json()["payload"] is None


def test_payload_is_stored_as_sent(http: httpx.Client) -> None:
    job = http.post(
        "/jobs", content=b'{"job_type": "test", "payload": {"z": 1.50, "a": 12345678901234567890, "e": 1E5}}'
    ).json()
    assert '{"z": 1.50, "a": 12345678901234567890, "e": 1E5}' in http.get(f"/jobs/{job['id']}").text


def test_job_and_claim_have_tags_and_metadata(api: Api) -> None:
    job = api.enqueue(tags=["red", "blue"], metadata={"tenant": "acme", "nested": {"n": [1, None]}})
    for returned in (api.job(job["id"]), api.claim_one()):
        assert returned["tags"] == ["red", "blue"]
        assert returned["metadata"] == {"tenant": "acme", "nested": {"n": [1, None]}}


def test_trace_context_is_stored_and_delivered(api: Api, http: httpx.Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers={"traceparent": trace}).raise_for_status()
    assert api.claim_one()["traceparent"] == trace


def test_job_enqueued_without_a_trace_is_claimed_without_one(api: Api) -> None:
    api.enqueue()
    assert "traceparent" not in api.claim_one()


def test_higher_priority_is_claimed_first(api: Api) -> None:
    low, high = api.enqueue(priority=-32768), api.enqueue(priority=32767)
    assert [job["id"] for job in api.claim(max_jobs=2)["jobs"]] == [high["id"], low["id"]]


def test_lease_seconds_of_the_job_is_the_default_of_its_claim(api: Api) -> None:
    api.enqueue(lease_seconds=7)
    assert api.claim_one()["lease_seconds"] == 7


@table(
    ("fields", "pointer"),
    [
        ({"delay_second": 60}, "/delay_second"),
        ({"job_type": ""}, "/job_type"),
        ({"job_type": "a\nb"}, "/job_type"),
        ({"job_type": "a\n"}, "/job_type"),
        ({"queue": "../etc"}, "/queue"),
        ({"queue": "x" * 121}, "/queue"),
        ({"queue": None}, "/queue"),
        ({"priority": 32768}, "/priority"),
        ({"priority": -32769}, "/priority"),
        ({"priority": 1.5}, "/priority"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"lease_seconds": 0}, "/lease_seconds"),
        ({"lease_seconds": 86_401}, "/lease_seconds"),
        ({"group": "a b"}, "/group"),
        ({"tags": ["t"] * 33}, "/tags"),
        ({"tags": [""]}, "/tags/0"),
        ({"metadata": {"m": "x" * 17_000}}, "/metadata"),
        ({"retry": {"jitter": 2}}, "/retry/jitter"),
        ({"retry": {"bases": 2}}, "/retry/bases"),
    ],
)
def test_problem_points_at_the_invalid_field_of_a_job(api: Api, fields: dict[str, Any], pointer: str) -> None:
    problem = api.post("/jobs", {"job_type": "test", **fields}, status=422)
    assert problem["code"] == "validation_failed"
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


def test_job_without_a_job_type_is_rejected(api: Api) -> None:
    assert api.post("/jobs", {}, status=422)["errors"][0]["pointer"] == "/job_type"


def test_body_that_is_not_json_is_malformed_json(http: httpx.Client) -> None:
    answer = http.post("/jobs", content=b"{job_type: test}")
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


def test_payload_above_the_limit_is_rejected(api: Api) -> None:
    problem = api.post("/jobs", {"job_type": "test", "payload": "x" * 256 * 1024}, status=413)
    assert (problem["code"], problem["limit"]) == ("payload_too_large", 256 * 1024)


def test_payload_at_the_limit_is_accepted(api: Api) -> None:
    payload = "x" * (256 * 1024 - 2)
    assert api.claim(max_jobs=1)["jobs"] == []
    api.enqueue(payload=payload)
    assert api.claim_one()["payload"] == payload
