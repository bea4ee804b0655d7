"""Overrides of a replay: queue, priority, max_attempts, payload_merge."""

import json
from typing import Any

import httpx
import pytest

from tests.api_client import Api, Json


def replay_with_overrides(api: Api, job: Json, **overrides: Any) -> Json:
    """Replays a dead letter and returns the resulting job."""
    response = api.post("/dead-letters/replay", {"ids": [job["id"]], "overrides": overrides})
    assert response["replayed"] == 1
    return api.job(response["sample"][0])


def test_replay_overrides_priority_and_max_attempts(api: Api) -> None:
    job = api.dead_letter(priority=1, max_attempts=3)
    replayed_job = replay_with_overrides(api, job, priority=-9, max_attempts=8)
    assert (replayed_job["id"], replayed_job["priority"], replayed_job["max_attempts"]) == (job["id"], -9, 8)


def test_replay_keeps_values_without_an_override(api: Api) -> None:
    job = api.dead_letter(priority=1, max_attempts=3, payload={"a": 1})
    replayed_job = replay_with_overrides(api, job, priority=2)
    assert (replayed_job["priority"], replayed_job["max_attempts"], replayed_job["payload"]) == (2, 3, {"a": 1})


def test_replay_into_another_queue_creates_a_job_with_replayed_from(api: Api) -> None:
    job = api.dead_letter(
        payload={"a": 1}, tags=["t"], metadata={"m": 1}, priority=4, max_attempts=3, group="g", lease_seconds=7
    )
    new_job = replay_with_overrides(api, job, queue=f"{api.queue}-b")
    assert (new_job["queue"], new_job["replayed_from"]) == (f"{api.queue}-b", job["id"])
    assert new_job["id"] != job["id"]
    copied = ("payload", "tags", "metadata", "priority", "max_attempts", "group", "job_type")
    assert {name: new_job[name] for name in copied} == {name: job[name] for name in copied}
    assert (new_job["state"], new_job["attempt"], new_job["deliveries"]) == ("ready", 0, 0)
    assert api.claim_one(queues=[f"{api.queue}-b"])["lease_seconds"] == 7


def test_replay_into_another_queue_removes_the_dead_letter(api: Api) -> None:
    job = api.dead_letter()
    replay_with_overrides(api, job, queue=f"{api.queue}-b")
    api.get(f"/dead-letters/{job['id']}", status=404)
    assert api.counts() == {}
    assert api.get(f"/queues/{api.queue}-b/stats")["counts"]["ready"] == 1


def test_replay_into_another_queue_can_be_spread_over_time(api: Api) -> None:
    for _ in range(3):
        api.dead_letter()
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
@pytest.mark.parametrize("into_other_queue", [False, True])
def test_payload_merge_patches_the_payload(
    api: Api, payload: Any, patch: Any, merged: Any, into_other_queue: bool
) -> None:
    job = api.dead_letter(payload=payload)
    target = {"queue": f"{api.queue}-b"} if into_other_queue else {}
    assert replay_with_overrides(api, job, payload_merge=patch, **target)["payload"] == merged


def test_payload_merge_keeps_the_text_of_every_number(api: Api, http: httpx.Client) -> None:
    payload = '{"big": 12345678901234567890123, "exact": 1.10, "in": {"e": 1E2}, "old": 1}'
    enqueue = f'{{"job_type": "test", "queue": "{api.queue}", "payload": {payload}}}'
    job = http.post("/jobs", content=enqueue).json()
    api.fail(api.claim_one(), retryable=False)
    body = '{"ids": ["%s"], "overrides": {"payload_merge": {"in": {"n": 2.50}, "old": null, "new": 3.00}}}'
    http.post("/dead-letters/replay", content=body % job["id"]).raise_for_status()
    text = http.get(f"/jobs/{job['id']}").text
    for number in ("12345678901234567890123", "1.10", "1E2", "2.50", "3.00"):
        assert number in text
    assert json.loads(text)["payload"].keys() == {"big", "exact", "in", "new"}


def test_payload_merge_that_makes_the_payload_too_large_is_rejected(api: Api) -> None:
    job = api.dead_letter(payload={"a": "x" * 200_000})
    body = {"ids": [job["id"]], "overrides": {"payload_merge": {"b": "x" * 100_000}}}
    assert api.post("/dead-letters/replay", body, status=413)["code"] == "payload_too_large"
    assert api.counts() == {"dead": 1}
