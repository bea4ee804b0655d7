"""Effects of a job type on enqueue: validation of payloads, and defaults for jobs."""

from datetime import timedelta
from typing import Any

import pytest

from tests.api.job_types.conftest import Put
from tests.api_client import Api, Json, parse_time

SCHEMA: Json = {
    "type": "object",
    "required": ["to"],
    "properties": {"to": {"type": "string"}, "copies": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}
VALID_PAYLOAD: Json = {"to": "ada@example.com"}


@pytest.fixture
def type_with_schema(put: Put, job_type: str) -> str:
    put(payload_schema=SCHEMA)
    return job_type


def faults(problem: Json) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in problem["errors"]]


# Payloads


def test_valid_payload_is_accepted(api: Api, type_with_schema: str) -> None:
    job = api.enqueue(job_type=type_with_schema, payload={**VALID_PAYLOAD, "copies": 2})
    assert api.claim_one()["id"] == job["id"]


def test_integral_float_is_an_integer(api: Api, type_with_schema: str) -> None:
    api.enqueue(job_type=type_with_schema, payload={**VALID_PAYLOAD, "copies": 1.0})
    assert faults(api.enqueue(job_type=type_with_schema, payload={**VALID_PAYLOAD, "copies": 1.5}, status=422)) == [
        ("/payload/copies", "invalid")
    ]


def test_invalid_payload_is_rejected_with_a_pointer_to_every_fault(api: Api, type_with_schema: str) -> None:
    problem = api.enqueue(job_type=type_with_schema, payload={"copies": 0, "a/b~c": 1}, status=422)
    assert problem["code"] == "validation_failed"
    assert sorted(faults(problem)) == [
        ("/payload/a~1b~0c", "unknown_field"),
        ("/payload/copies", "invalid"),
        ("/payload/to", "missing"),
    ]
    assert api.claim()["jobs"] == []


def test_absent_payload_is_validated_as_an_empty_object(api: Api, put: Put, type_with_schema: str) -> None:
    assert faults(api.enqueue(job_type=type_with_schema, status=422)) == [("/payload/to", "missing")]
    put(payload_schema={"type": "object"})
    assert api.enqueue(job_type=type_with_schema)["payload"] == {}


def test_null_payload_is_validated_as_null(api: Api, put: Put, type_with_schema: str) -> None:
    assert faults(api.enqueue(job_type=type_with_schema, payload=None, status=422)) == [("/payload", "invalid")]
    put(payload_schema={"type": "null"})
    assert api.enqueue(job_type=type_with_schema, payload=None)["payload"] is None


def test_boolean_schema_accepts_or_rejects_every_payload(api: Api, put: Put, job_type: str) -> None:
    put(payload_schema=False)
    assert faults(api.enqueue(job_type=job_type, payload=VALID_PAYLOAD, status=422)) == [("/payload", "invalid")]
    put(payload_schema=True)
    api.enqueue(job_type=job_type, payload=VALID_PAYLOAD)


def test_payload_of_another_job_type_is_not_validated(api: Api, type_with_schema: str) -> None:
    api.enqueue(job_type=f"{type_with_schema}.other", payload=[1])


def test_job_type_without_a_schema_accepts_any_payload(api: Api, put: Put, job_type: str) -> None:
    put(max_attempts=2)
    api.enqueue(job_type=job_type, payload=[1])


def test_problem_lists_ten_errors_of_a_payload_and_counts_all(api: Api, put: Put, job_type: str) -> None:
    put(payload_schema={"items": {"type": "string"}})
    problem = api.enqueue(job_type=job_type, payload=list(range(50)), delay_seconds=10**9, status=422)
    assert len(problem["errors"]) == 10
    assert "51 errors, 10 listed; the first: " in problem["detail"]


# Batches


def test_invalid_payload_rejects_an_atomic_batch(api: Api, type_with_schema: str) -> None:
    valid_job: Json = {"job_type": type_with_schema, "payload": VALID_PAYLOAD}
    problem = api.batch(
        valid_job,
        valid_job,
        valid_job,
        {"job_type": type_with_schema, "payload": {}},
        {"job_type": type_with_schema, "payload": 7},
        status=422,
    )
    assert ("/jobs/3/payload/to", "missing") in faults(problem)
    assert api.claim(max_jobs=10)["jobs"] == []


def test_invalid_payload_rejects_only_its_job_of_a_non_atomic_batch(api: Api, type_with_schema: str) -> None:
    valid_job: Json = {"job_type": type_with_schema, "payload": VALID_PAYLOAD}
    response = api.batch(
        valid_job, {"job_type": type_with_schema, "payload": {"copies": 1}}, valid_job, atomic=False, status=207
    )
    assert [result["status"] for result in response["results"]] == ["created", "rejected", "created"]
    assert faults(response["results"][1]["problem"]) == [("/jobs/1/payload/to", "missing")]
    assert len(api.claim(max_jobs=10)["jobs"]) == 2


# Changes


def test_new_schema_takes_effect_at_once(api: Api, put: Put, type_with_schema: str) -> None:
    api.enqueue(job_type=type_with_schema, payload=VALID_PAYLOAD)
    put(payload_schema={"required": ["recipient"]})
    assert faults(api.enqueue(job_type=type_with_schema, payload=VALID_PAYLOAD, status=422)) == [
        ("/payload/recipient", "missing")
    ]
    api.delete(f"/job-types/{type_with_schema}")
    api.enqueue(job_type=type_with_schema, payload=[])


def test_new_schema_does_not_affect_enqueued_jobs(api: Api, put: Put, type_with_schema: str) -> None:
    """Payloads are validated only on enqueue."""
    waiting = api.enqueue(job_type=type_with_schema, payload=VALID_PAYLOAD, retry={"base_seconds": 0})
    put(payload_schema=False)
    assert api.job(waiting["id"])["payload"] == VALID_PAYLOAD
    api.fail(api.claim_one())
    again = api.claim_one(wait_seconds=20)
    assert (again["id"], again["payload"]) == (waiting["id"], VALID_PAYLOAD)
    assert api.complete(again)["state"] == "completed"


# Precedence of defaults: job, job type, queue, settings


def attempts(api: Api, job_type: str, **overrides: Any) -> int:
    max_attempts: int = api.enqueue(job_type=job_type, **overrides)["max_attempts"]
    return max_attempts


def test_max_attempts_comes_from_job_then_type_then_queue_then_settings(api: Api, put: Put, job_type: str) -> None:
    by_settings = attempts(api, job_type)
    api.configure(default_max_attempts=by_settings + 1)
    assert attempts(api, job_type) == by_settings + 1
    put(max_attempts=by_settings + 2)
    assert attempts(api, job_type) == by_settings + 2
    assert attempts(api, job_type, max_attempts=by_settings + 3) == by_settings + 3


def test_max_attempts_of_the_retry_policy_applies_unless_the_type_has_its_own(
    api: Api, put: Put, job_type: str
) -> None:
    put(retry={"max_attempts": 11})
    assert attempts(api, job_type) == 11
    put(retry={"max_attempts": 11}, max_attempts=12)
    assert attempts(api, job_type) == 12


def lease(api: Api, job_type: str, **overrides: Any) -> int:
    job = api.enqueue(job_type=job_type, **overrides)
    claimed = api.claim_one()
    assert claimed["id"] == job["id"]
    seconds: int = claimed["lease_seconds"]
    return seconds


def test_lease_seconds_comes_from_job_then_type_then_queue_then_settings(api: Api, put: Put, job_type: str) -> None:
    assert lease(api, job_type) == 60
    api.configure(default_lease_seconds=70)
    assert lease(api, job_type) == 70
    put(lease_seconds=80)
    assert lease(api, job_type) == 80
    assert lease(api, job_type, lease_seconds=90) == 90


def delay(api: Api, job_type: str, **overrides: float) -> timedelta:
    """The delay of the first retry."""
    job = api.enqueue(job_type=job_type, retry=overrides)
    failed = api.fail(api.claim_one())
    assert failed["job_id"] == job["id"]
    return parse_time(failed["run_at"]) - parse_time(job["created_at"])


def test_retry_policy_comes_from_job_then_type_then_queue(api: Api, put: Put, job_type: str) -> None:
    """The delays are an hour apart, so that the duration of the calls does not matter."""
    hour = 3600.0
    api.configure(default_retry={"base_seconds": 2 * hour, "max_seconds": 24 * hour, "jitter": 0})
    assert timedelta(hours=2) <= delay(api, job_type) < timedelta(hours=3)
    put(retry={"base_seconds": 4 * hour, "jitter": 0})
    assert timedelta(hours=4) <= delay(api, job_type) < timedelta(hours=5)
    assert timedelta(hours=6) <= delay(api, job_type, base_seconds=6 * hour, jitter=0) < timedelta(hours=7)


def run_time(api: Api, job_type: str, **overrides: Any) -> float | None:
    """The longest run in seconds."""
    job = api.enqueue(job_type=job_type, **overrides)
    claimed = api.claim_one()
    assert claimed["id"] == job["id"]
    if "deadline_at" not in claimed:
        return None
    return round((parse_time(claimed["deadline_at"]) - parse_time(api.job(job["id"])["started_at"])).total_seconds())


def test_timeout_seconds_comes_from_job_then_type(api: Api, put: Put, job_type: str) -> None:
    assert run_time(api, job_type) is None
    put(timeout_seconds=1000)
    assert run_time(api, job_type) == 1000
    assert run_time(api, job_type, timeout_seconds=2000) == 2000


def test_job_keeps_the_values_it_was_enqueued_with(api: Api, put: Put, job_type: str) -> None:
    put(max_attempts=9, lease_seconds=80)
    job = api.enqueue(job_type=job_type)
    put(max_attempts=3, lease_seconds=90)
    claimed = api.claim_one()
    assert (claimed["id"], claimed["max_attempts"], claimed["lease_seconds"]) == (job["id"], 9, 80)
