"""What a job type means for the jobs that are enqueued: payloads that fit, and rules that hold unless the job has its own."""

from datetime import timedelta
from typing import Any

import pytest

from tests.api import Api, Json, when
from tests.job_types.conftest import Put

SCHEMA: Json = {
    "type": "object",
    "required": ["to"],
    "properties": {"to": {"type": "string"}, "copies": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}
GOOD: Json = {"to": "ada@example.com"}


@pytest.fixture
def checked(put: Put, job_type: str) -> str:
    put(payload_schema=SCHEMA)
    return job_type


def faults(problem: Json) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in problem["errors"]]


# Payloads


def test_a_payload_that_fits_is_taken(api: Api, checked: str) -> None:
    job = api.enqueue(job_type=checked, payload={**GOOD, "copies": 2})
    assert api.claim_one()["id"] == job["id"]


def test_one_point_zero_is_an_integer(api: Api, checked: str) -> None:
    api.enqueue(job_type=checked, payload={**GOOD, "copies": 1.0})
    assert faults(api.enqueue(job_type=checked, payload={**GOOD, "copies": 1.5}, status=422)) == [
        ("/payload/copies", "invalid")
    ]


def test_every_fault_is_pointed_at_and_nothing_is_stored(api: Api, checked: str) -> None:
    problem = api.enqueue(job_type=checked, payload={"copies": 0, "a/b~c": 1}, status=422)
    assert problem["code"] == "validation_failed"
    assert sorted(faults(problem)) == [
        ("/payload/a~1b~0c", "unknown_field"),
        ("/payload/copies", "invalid"),
        ("/payload/to", "missing"),
    ]
    assert api.claim()["jobs"] == []


def test_an_absent_payload_is_an_empty_object(api: Api, put: Put, checked: str) -> None:
    assert faults(api.enqueue(job_type=checked, status=422)) == [("/payload/to", "missing")]
    put(payload_schema={"type": "object"})
    assert api.enqueue(job_type=checked)["payload"] == {}


def test_null_is_a_payload_like_any_other(api: Api, put: Put, checked: str) -> None:
    assert faults(api.enqueue(job_type=checked, payload=None, status=422)) == [("/payload", "invalid")]
    put(payload_schema={"type": "null"})
    assert api.enqueue(job_type=checked, payload=None)["payload"] is None


def test_a_schema_may_be_a_boolean(api: Api, put: Put, job_type: str) -> None:
    put(payload_schema=False)
    assert faults(api.enqueue(job_type=job_type, payload=GOOD, status=422)) == [("/payload", "invalid")]
    put(payload_schema=True)
    api.enqueue(job_type=job_type, payload=GOOD)


def test_other_types_are_not_checked(api: Api, checked: str) -> None:
    api.enqueue(job_type=f"{checked}.other", payload=[1])


def test_a_type_without_a_schema_takes_any_payload(api: Api, put: Put, job_type: str) -> None:
    put(max_attempts=2)
    api.enqueue(job_type=job_type, payload=[1])


def test_ten_errors_of_a_payload_are_listed_and_all_are_counted(api: Api, put: Put, job_type: str) -> None:
    put(payload_schema={"items": {"type": "string"}})
    problem = api.enqueue(job_type=job_type, payload=list(range(50)), delay_seconds=10**9, status=422)
    assert len(problem["errors"]) == 10
    assert "51 errors, 10 listed; the first: " in problem["detail"]


# Batches


def test_one_bad_payload_refuses_the_batch(api: Api, checked: str) -> None:
    good: Json = {"job_type": checked, "payload": GOOD}
    problem = api.batch(
        good, good, good, {"job_type": checked, "payload": {}}, {"job_type": checked, "payload": 7}, status=422
    )
    assert ("/jobs/3/payload/to", "missing") in faults(problem)
    assert api.claim(max_jobs=10)["jobs"] == []


def test_the_others_are_taken_where_that_was_asked(api: Api, checked: str) -> None:
    good: Json = {"job_type": checked, "payload": GOOD}
    answer = api.batch(good, {"job_type": checked, "payload": {"copies": 1}}, good, atomic=False, status=207)
    assert [result["status"] for result in answer["results"]] == ["created", "rejected", "created"]
    assert faults(answer["results"][1]["problem"]) == [("/jobs/1/payload/to", "missing")]
    assert len(api.claim(max_jobs=10)["jobs"]) == 2


# Changes


def test_a_new_schema_holds_at_once(api: Api, put: Put, checked: str) -> None:
    api.enqueue(job_type=checked, payload=GOOD)
    put(payload_schema={"required": ["recipient"]})
    assert faults(api.enqueue(job_type=checked, payload=GOOD, status=422)) == [("/payload/recipient", "missing")]
    api.delete(f"/job-types/{checked}")
    api.enqueue(job_type=checked, payload=[])


def test_a_new_schema_breaks_no_job_that_waits(api: Api, put: Put, checked: str) -> None:
    """It is looked at when a job is enqueued, and never again."""
    waiting = api.enqueue(job_type=checked, payload=GOOD, retry={"base_seconds": 0})
    put(payload_schema=False)
    assert api.job(waiting["id"])["payload"] == GOOD
    api.fail(api.claim_one())
    again = api.claim_one(wait_seconds=20)
    assert (again["id"], again["payload"]) == (waiting["id"], GOOD)
    assert api.complete(again)["state"] == "completed"


# Rules: the job's own, its type's, its queue's, the settings'


def attempts(api: Api, job_type: str, **own: Any) -> int:
    most: int = api.enqueue(job_type=job_type, **own)["max_attempts"]
    return most


def test_attempts(api: Api, put: Put, job_type: str) -> None:
    by_settings = attempts(api, job_type)
    api.configure(default_max_attempts=by_settings + 1)
    assert attempts(api, job_type) == by_settings + 1
    put(max_attempts=by_settings + 2)
    assert attempts(api, job_type) == by_settings + 2
    assert attempts(api, job_type, max_attempts=by_settings + 3) == by_settings + 3


def test_attempts_may_stand_in_the_retry_policy(api: Api, put: Put, job_type: str) -> None:
    put(retry={"max_attempts": 11})
    assert attempts(api, job_type) == 11
    put(retry={"max_attempts": 11}, max_attempts=12)
    assert attempts(api, job_type) == 12


def lease(api: Api, job_type: str, **own: Any) -> int:
    job = api.enqueue(job_type=job_type, **own)
    claimed = api.claim_one()
    assert claimed["id"] == job["id"]
    seconds: int = claimed["lease_seconds"]
    return seconds


def test_leases(api: Api, put: Put, job_type: str) -> None:
    assert lease(api, job_type) == 60
    api.configure(default_lease_seconds=70)
    assert lease(api, job_type) == 70
    put(lease_seconds=80)
    assert lease(api, job_type) == 80
    assert lease(api, job_type, lease_seconds=90) == 90


def delay(api: Api, job_type: str, **own: float) -> timedelta:
    """Of the first retry."""
    job = api.enqueue(job_type=job_type, retry=own)
    failed = api.fail(api.claim_one())
    assert failed["job_id"] == job["id"]
    return when(failed["run_at"]) - when(job["created_at"])


def test_retries(api: Api, put: Put, job_type: str) -> None:
    """An hour lies between each of them, so that it does not matter how long the calls take."""
    hour = 3600.0
    api.configure(default_retry={"base_seconds": 2 * hour, "max_seconds": 24 * hour, "jitter": 0})
    assert timedelta(hours=2) <= delay(api, job_type) < timedelta(hours=3)
    put(retry={"base_seconds": 4 * hour, "jitter": 0})
    assert timedelta(hours=4) <= delay(api, job_type) < timedelta(hours=5)
    assert timedelta(hours=6) <= delay(api, job_type, base_seconds=6 * hour, jitter=0) < timedelta(hours=7)


def run_time(api: Api, job_type: str, **own: Any) -> float | None:
    """How long a run may take, in seconds."""
    job = api.enqueue(job_type=job_type, **own)
    claimed = api.claim_one()
    assert claimed["id"] == job["id"]
    if "deadline_at" not in claimed:
        return None
    return round((when(claimed["deadline_at"]) - when(api.job(job["id"])["started_at"])).total_seconds())


def test_timeouts(api: Api, put: Put, job_type: str) -> None:
    assert run_time(api, job_type) is None
    put(timeout_seconds=1000)
    assert run_time(api, job_type) == 1000
    assert run_time(api, job_type, timeout_seconds=2000) == 2000


def test_a_job_keeps_the_rules_that_it_was_enqueued_with(api: Api, put: Put, job_type: str) -> None:
    put(max_attempts=9, lease_seconds=80)
    job = api.enqueue(job_type=job_type)
    put(max_attempts=3, lease_seconds=90)
    claimed = api.claim_one()
    assert (claimed["id"], claimed["max_attempts"], claimed["lease_seconds"]) == (job["id"], 9, 80)
