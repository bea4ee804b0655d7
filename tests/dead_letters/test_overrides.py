"""What a replay may change: queue, priority, max_attempts, payload_merge."""

import json
from typing import Any

import httpx
import pytest

from tests.api import Api, Json


def replayed(api: Api, job: Json, **overrides: Any) -> Json:
    """The job that has come of it."""
    answer = api.post("/dead-letters/replay", {"ids": [job["id"]], "overrides": overrides})
    assert answer["replayed"] == 1
    return api.job(answer["sample"][0])


def test_priority_and_attempts_may_change(api: Api) -> None:
    job = api.dead(priority=1, max_attempts=3)
    alive = replayed(api, job, priority=-9, max_attempts=8)
    assert (alive["id"], alive["priority"], alive["max_attempts"]) == (job["id"], -9, 8)


def test_what_is_not_overridden_stays(api: Api) -> None:
    job = api.dead(priority=1, max_attempts=3, payload={"a": 1})
    alive = replayed(api, job, priority=2)
    assert (alive["priority"], alive["max_attempts"], alive["payload"]) == (2, 3, {"a": 1})


def test_another_queue_makes_a_new_job_that_names_the_old(api: Api) -> None:
    job = api.dead(
        payload={"a": 1}, tags=["t"], metadata={"m": 1}, priority=4, max_attempts=3, group="g", lease_seconds=7
    )
    fresh = replayed(api, job, queue=f"{api.queue}-b")
    assert (fresh["queue"], fresh["replayed_from"]) == (f"{api.queue}-b", job["id"])
    assert fresh["id"] != job["id"]
    same = ("payload", "tags", "metadata", "priority", "max_attempts", "group", "job_type")
    assert {name: fresh[name] for name in same} == {name: job[name] for name in same}
    assert (fresh["state"], fresh["attempt"], fresh["deliveries"]) == ("ready", 0, 0)
    assert api.claim_one(queues=[f"{api.queue}-b"])["lease_seconds"] == 7


def test_a_job_that_went_to_another_queue_is_no_dead_letter_any_more(api: Api) -> None:
    job = api.dead()
    replayed(api, job, queue=f"{api.queue}-b")
    api.get(f"/dead-letters/{job['id']}", status=404)
    assert api.counts() == {}
    assert api.get(f"/queues/{api.queue}-b/stats")["counts"]["ready"] == 1


def test_another_queue_goes_together_with_a_spread(api: Api) -> None:
    for _ in range(3):
        api.dead()
    api.post("/dead-letters/replay", {"all": True, "spread_seconds": 3000, "overrides": {"queue": f"{api.queue}-b"}})
    counts = api.get(f"/queues/{api.queue}-b/stats")["counts"]
    assert (counts["ready"], counts["scheduled"]) == (1, 2)


@pytest.mark.parametrize(
    ("payload", "patch", "merged"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": None, "z": [3]}}, {"a": {"x": 1, "z": [3]}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [1]}, {"a": {"b": {"c": None, "d": 1}}}, {"a": {"b": {"d": 1}}}),
        ([1, 2], {"a": 1}, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_merge_changes_the_payload(api: Api, payload: Any, patch: Any, merged: Any, elsewhere: bool) -> None:
    job = api.dead(payload=payload)
    target = {"queue": f"{api.queue}-b"} if elsewhere else {}
    assert replayed(api, job, payload_merge=patch, **target)["payload"] == merged


def test_a_merge_keeps_the_text_of_every_number(api: Api, http: httpx.Client) -> None:
    sent = '{"job_type": "test", "queue": "%s", "payload": {"big": 12345678901234567890123, "exact": 1.10, "in": {"e": 1E2}, "old": 1}}'
    job = http.post("/jobs", content=sent % api.queue).json()
    api.fail(api.claim_one(), retryable=False)
    body = '{"ids": ["%s"], "overrides": {"payload_merge": {"in": {"n": 2.50}, "old": null, "new": 3.00}}}'
    http.post("/dead-letters/replay", content=body % job["id"]).raise_for_status()
    text = http.get(f"/jobs/{job['id']}").text
    for number in ("12345678901234567890123", "1.10", "1E2", "2.50", "3.00"):
        assert number in text
    assert json.loads(text)["payload"].keys() == {"big", "exact", "in", "new"}


def test_a_merge_may_not_make_the_payload_too_large(api: Api) -> None:
    job = api.dead(payload={"a": "x" * 200_000})
    body = {"ids": [job["id"]], "overrides": {"payload_merge": {"b": "x" * 100_000}}}
    assert api.post("/dead-letters/replay", body, status=413)["code"] == "payload_too_large"
    assert api.counts() == {"dead": 1}
