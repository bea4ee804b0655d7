"""How a worker settles leases: complete, fail, snooze, release; one by one and in batches."""

from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.table import table

VALUES: list[Any] = [
    None,
    False,
    0,
    "",
    [],
    {},
    12345678901234567890,
    -0.0001,
    {"a": [1, {"ä☃": None}], "b": '\\u0041 " \\'},
]

REQUIRED_FIELDS: dict[str, Json] = {"fail": {"error": {"message": "m"}}, "snooze": {"delay_seconds": 60}}


def item(job: Json, outcome: str, **fields: Any) -> Json:
    return {
        "job_id": job["id"],
        "lease_token": job["lease_token"],
        "outcome": outcome,
        **REQUIRED_FIELDS.get(outcome, {}),
        **fields,
    }


@pytest.fixture
def held(api: Api) -> Json:
    api.enqueue()
    return api.claim_one(worker_id="w")


def test_complete_finishes_the_job(api: Api, held: Json) -> None:
    result = api.complete(held, result={"sum": 3})
    assert result == {"job_id": held["id"], "status": "settled", "state": "completed", "attempt": 1}
    job = api.job(held["id"])
    assert (job["state"], job["result"], job["worker_id"]) == ("completed", {"sum": 3}, "w")
    assert {"finished_at", "duration_ms", "started_at"} <= job.keys()
    assert not {"lease_expires_at", "error"} & job.keys()


def test_a_job_completed_without_a_result_has_none(api: Api, held: Json) -> None:
    api.complete(held)
    assert "result" not in api.job(held["id"])


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_result_is_stored_unchanged(api: Api, held: Json, value: object) -> None:
    api.complete(held, result=value)
    job = api.job(held["id"])
    assert job["result"] == value
    assert type(job["result"]) is type(value)


def test_error_details_and_checkpoint_are_stored_unchanged(api: Api) -> None:
    for value in VALUES:
        job = api.enqueue()
        held = api.claim_one()
        api.heartbeat_one(held, checkpoint=value)
        error = {"message": "m", "error_type": "E", "stack": "s", "details": value}
        api.fail(held, retryable=False, error=error)
        after = api.job(job["id"])
        assert (after["error"], after["checkpoint"]) == (error, value)


def test_fail_schedules_the_job_after_its_back_off_and_stores_the_error(api: Api, held: Json) -> None:
    result = api.fail(held, error={"message": "no route", "error_type": "Net", "stack": "at x", "details": {"code": 7}})
    assert (result["status"], result["state"], result["attempt"]) == ("settled", "scheduled", 1)
    job = api.job(held["id"])
    assert (job["state"], job["state_reason"], job["run_at"]) == ("scheduled", "retry_backoff", result["run_at"])
    assert job["error"] == {"message": "no route", "error_type": "Net", "stack": "at x", "details": {"code": 7}}
    (attempt,) = api.get(f"/jobs/{held['id']}/attempts")["items"]
    assert (attempt["attempt"], attempt["outcome"], attempt["worker_id"], attempt["error"]["message"]) == (
        1,
        "fail",
        "w",
        "no route",
    )


def test_snooze_schedules_the_job_and_costs_no_attempt(api: Api, held: Json) -> None:
    result = api.snooze(held, 120, checkpoint={"page": 2})
    assert (result["state"], result["attempt"]) == ("scheduled", 0)
    job = api.job(held["id"])
    assert (job["state_reason"], job["attempt"], job["deliveries"], job["checkpoint"]) == ("snoozed", 0, 1, {"page": 2})
    assert (datetime.fromisoformat(job["run_at"]) - datetime.fromisoformat(job["started_at"])).total_seconds() >= 120
    assert api.get(f"/jobs/{held['id']}/attempts")["items"] == []


def test_release_makes_the_job_ready_and_costs_no_attempt(api: Api, held: Json) -> None:
    result = api.release(held)
    assert (result["state"], result["attempt"]) == ("ready", 0)
    again = api.claim_one()
    assert (again["id"], again["attempt"], again["deliveries"]) == (held["id"], 1, 2)
    assert again["lease_token"] != held["lease_token"]


def test_settle_accepts_all_outcomes_in_one_call_and_keeps_their_order(api: Api) -> None:
    other = f"{api.queue}-other"
    for queue in (api.queue, other, api.queue, other, api.queue):
        api.enqueue(queue=queue)
    a, b, c, d, e = api.claim(max_jobs=5, queues=[api.queue, other])["jobs"]
    unknown = {"id": str(uuid4()), "lease_token": "x"}
    items = [
        item(e, "release"),
        item(d, "complete", result=1),
        item(unknown, "complete"),
        item(c, "snooze"),
        item(b, "fail"),
        item({**a, "lease_token": "stale"}, "complete"),
    ]
    response = api.settle(*items)
    assert [result["job_id"] for result in response["results"]] == [sent["job_id"] for sent in items]
    states = [(result["status"], result.get("state")) for result in response["results"]]
    assert states == [
        ("settled", "ready"),
        ("settled", "completed"),
        ("not_found", None),
        ("settled", "scheduled"),
        ("settled", "scheduled"),
        ("lease_lost", "running"),
    ]
    assert (response["settled"], response["lost"]) == (4, 2)


def test_completions_of_one_lane_keep_their_order_with_each_kind_of_result(api: Api) -> None:
    api.enqueue_many(4)
    a, b, c, d = api.claim(max_jobs=4)["jobs"]
    api.complete(b)
    response = api.settle(*[item(job, "complete") for job in (d, {**c, "lease_token": "stale"}, b, a)])
    assert [(result["job_id"], result["status"], result["state"]) for result in response["results"]] == [
        (d["id"], "settled", "completed"),
        (c["id"], "lease_lost", "running"),
        (b["id"], "already_settled", "completed"),
        (a["id"], "settled", "completed"),
    ]
    assert (response["settled"], response["lost"]) == (3, 1)


def test_job_that_appears_twice_is_settled_by_the_first_item(api: Api, held: Json) -> None:
    response = api.settle(item(held, "complete", result=1), item(held, "complete", result=2), item(held, "fail"))
    assert [result["status"] for result in response["results"]] == ["settled", "already_settled", "lease_lost"]
    assert api.job(held["id"])["result"] == 1


def test_first_item_with_the_valid_token_settles_the_job(api: Api, held: Json) -> None:
    response = api.settle(item({**held, "lease_token": "?"}, "fail"), item(held, "complete"))
    assert [result["status"] for result in response["results"]] == ["lease_lost", "settled"]


def test_settle_accepts_an_empty_list(api: Api) -> None:
    assert api.settle() == {"results": [], "settled": 0, "lost": 0}


@table("verb", ["complete", "fail", "snooze", "release", "heartbeat"])
def test_settlement_of_an_unknown_job_is_not_found(api: Api, verb: str) -> None:
    body = {"lease_token": "x", **REQUIRED_FIELDS.get(verb, {})}
    for version in (1, 4, 7):
        job_id = f"01890000-0000-{version}000-8000-000000000000"
        assert api.post(f"/jobs/{job_id}/{verb}", body, status=404)["code"] == "not_found"


@table(
    ("sent", "pointer"),
    [
        ({"outcome": "finish"}, "/items/1/outcome"),
        ({"outcome": "fail", "error": None}, "/items/1/error"),
        ({"outcome": "snooze", "delay_seconds": -1}, "/items/1/delay_seconds"),
        ({"outcome": "fail", "retry_after_seconds": 10**12}, "/items/1/retry_after_seconds"),
        ({"outcome": "complete", "reslt": 1}, "/items/1/reslt"),
    ],
)
def test_invalid_item_rejects_the_settle_call_and_settles_nothing(
    api: Api, held: Json, sent: Json, pointer: str
) -> None:
    problem = api.post("/settle", {"items": [item(held, "complete"), {**item(held, "release"), **sent}]}, status=422)
    assert problem["errors"][0]["pointer"] == pointer
    assert api.job(held["id"])["state"] == "running"


@pytest.mark.parametrize(("outcome", "missing"), [("fail", "error"), ("snooze", "delay_seconds")])
def test_fields_that_an_outcome_requires_are_required_on_every_route(
    api: Api, held: Json, outcome: str, missing: str
) -> None:
    sent = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": outcome}
    assert api.post("/settle", {"items": [sent]}, status=422)["errors"][0]["pointer"] == f"/items/0/{missing}"
    assert api.post("/claim", {"settle": [sent]}, status=422)["errors"][0]["pointer"] == f"/settle/0/{missing}"
    token = {"lease_token": held["lease_token"]}
    assert api.post(f"/jobs/{held['id']}/{outcome}", token, status=422)["errors"][0]["pointer"] == f"/{missing}"


def test_settle_rejects_more_than_1000_items(api: Api, held: Json) -> None:
    many = [item(held, "complete")] * 1001
    problem = api.post("/settle", {"items": many}, status=413)
    assert (problem["code"], problem["limit"]) == ("batch_too_large", 1000)
    assert api.job(held["id"])["state"] == "running"


def test_settle_accepts_1000_items(api: Api, db: TestDatabase) -> None:
    api.post("/jobs/batch", {"jobs": [{"queue": api.queue, "job_type": "t"}] * 1000}, status=201)
    jobs = api.claim(max_jobs=1000)["jobs"]
    response = api.settle(*[item(job, "complete") for job in reversed(jobs)])
    assert (response["settled"], response["lost"]) == (1000, 0)
    assert [result["job_id"] for result in response["results"]] == [job["id"] for job in reversed(jobs)]
    assert db.value("SELECT count(*) FROM finished_jobs WHERE state = 'completed'") == 1000


def test_large_settlements_of_one_call_are_all_stored(api: Api) -> None:
    """Together they are larger than one statement may be."""
    size, text = 12, "x" * 100_000
    api.enqueue_many(3 * size, max_attempts=1)
    leases = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in api.claim(max_jobs=3 * size)["jobs"]]
    completed, failed, running = leases[:size], leases[size : 2 * size], leases[2 * size :]
    answer = api.settle(
        *[{**lease, "outcome": "complete", "result": text} for lease in completed],
        *[{**lease, "outcome": "fail", "error": {"message": "no", "details": text}} for lease in failed],
    )
    assert [result["state"] for result in answer["results"]] == ["completed"] * size + ["dead"] * size
    leases = [{**lease, "checkpoint": text} for lease in running]
    statuses = [result["status"] for result in api.post("/heartbeat", {"worker_id": "w", "leases": leases})["leases"]]
    assert statuses == ["extended"] * size
    assert api.job(completed[-1]["job_id"])["result"] == text
    assert api.job(failed[-1]["job_id"])["error"]["details"] == text
    assert api.job(running[-1]["job_id"])["checkpoint"] == text


@pytest.mark.parametrize(("field", "verb"), [("result", "complete"), ("checkpoint", "snooze")])
def test_user_data_above_the_maximum_size_is_rejected_and_the_lease_stays(
    api: Api, held: Json, field: str, verb: str
) -> None:
    body = {
        "lease_token": held["lease_token"],
        field: "x" * 256 * 1024,
        **({"delay_seconds": 1} if verb == "snooze" else {}),
    }
    problem = api.post(f"/jobs/{held['id']}/{verb}", body, status=413)
    assert (problem["code"], problem["limit"], problem["errors"][0]["pointer"]) == (
        "payload_too_large",
        256 * 1024,
        f"/{field}",
    )
    assert api.heartbeat_one(held)["status"] == "extended"


def test_error_texts_are_cut_to_8_kilobytes_and_lose_nul_characters(api: Api, held: Json) -> None:
    error = {"message": "a\x00b" + "€" * 5000, "stack": "\x00" + "s" * 100_000, "error_type": "E\x00" + "t" * 500}
    api.fail(held, error=error)
    kept = api.job(held["id"])["error"]
    assert kept["message"].startswith("ab€")
    assert kept["stack"] == "s" * 8192
    assert all("\x00" not in text and len(text.encode()) <= 8192 for text in kept.values())
    assert len(kept["message"].encode()) > 8000


def test_large_error_in_a_batch_is_cut_too(api: Api, held: Json) -> None:
    api.settle(item(held, "fail", error={"message": "\x00m" * 100_000}))
    assert api.job(held["id"])["error"]["message"] == "m" * 8192
