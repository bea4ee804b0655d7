"""POST /dead-letters/replay and POST /dead-letters/{id}/replay."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.api_client import Api, Json, parse_time
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table


def replay(api: Api, *, status: int = 200, **body: Any) -> Json:
    response: Json = api.post("/dead-letters/replay", body, status=status)
    return response


def counts_of(response: Json) -> tuple[int, int, int]:
    return response["matched"], response["replayed"], response["remaining"]


@pytest.fixture
def dead_ids(api: Api) -> list[str]:
    """Three dead letters, oldest first."""
    return [api.dead_letter(payload={"n": n})["id"] for n in range(3)]


def test_replayed_job_keeps_its_id_and_history_and_starts_again(api: Api) -> None:
    job = api.enqueue(max_attempts=2, payload={"n": 1}, tags=["t"], metadata={"m": 1}, priority=3, group="g")
    for message in ("one", "two"):
        api.fail(api.claim_one(wait_seconds=20), message, retry_after_seconds=0)
    replayed = api.post(f"/dead-letters/{job['id']}/replay")
    expected = {**job, "replay_count": 1, "deliveries": 2, "run_at": replayed["run_at"], "error": {"message": "two"}}
    assert replayed == expected
    assert [attempt["error"]["message"] for attempt in api.attempts(job)] == ["one", "two"]
    api.get(f"/dead-letters/{job['id']}", status=404)


def test_replayed_job_has_all_its_attempts_again(api: Api) -> None:
    job = api.dead_letter(max_attempts=2)
    api.post(f"/dead-letters/{job['id']}/replay")
    claimed = api.claim_one()
    assert (claimed["attempt"], claimed["deliveries"]) == (1, 2)
    assert api.fail(claimed)["state"] == "scheduled"


def test_replay_resets_the_crash_count(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    job = api.enqueue(max_attempts=1)
    api.claim_one()
    db.age(job["id"], 61)
    eventually(lambda: api.job(job["id"])["state"] == "dead")
    assert api.job(job["id"])["crashes"] == 1
    replayed = api.post(f"/dead-letters/{job['id']}/replay")
    assert (replayed["attempt"], replayed["crashes"], replayed["deliveries"]) == (0, 0, 1)


def test_replay_count_counts_every_replay(api: Api) -> None:
    job = api.dead_letter()
    for count in (1, 2):
        assert api.post(f"/dead-letters/{job['id']}/replay")["replay_count"] == count
        api.fail(api.claim_one(), retryable=False)


def test_replay_keeps_the_checkpoint(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one()
    api.heartbeat_one(claimed, checkpoint={"page": 7})
    api.fail(claimed, retryable=False)
    api.post(f"/dead-letters/{job['id']}/replay")
    assert api.claim_one()["checkpoint"] == {"page": 7}


def test_lease_token_from_before_the_replay_is_rejected(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one()
    api.fail(claimed, retryable=False)
    api.post(f"/dead-letters/{job['id']}/replay")
    assert api.complete(claimed, status=409)["code"] == "lease_lost"


def test_replay_wakes_a_waiting_poll(api: Api, background: Background) -> None:
    job = api.dead_letter()
    poll = background.submit(api.claim_one, wait_seconds=20)
    api.post(f"/dead-letters/{job['id']}/replay")
    assert poll.result()["id"] == job["id"]


def test_second_replay_finds_no_dead_letter(api: Api) -> None:
    job = api.dead_letter()
    api.post(f"/dead-letters/{job['id']}/replay")
    assert api.post(f"/dead-letters/{job['id']}/replay", status=404)["code"] == "not_found"
    assert counts_of(replay(api, ids=[job["id"]])) == (0, 0, 0)
    assert api.counts() == {"ready": 1}


def test_concurrent_replays_replay_each_dead_letter_once(api: Api, dead_ids: list[str], background: Background) -> None:
    responses = list(background.map(lambda _: replay(api, ids=dead_ids), range(8)))
    assert sum(response["replayed"] for response in responses) == 3
    assert api.counts() == {"ready": 3}


def test_replay_by_ids_replays_only_these(api: Api, dead_ids: list[str]) -> None:
    response = replay(api, ids=[dead_ids[2], str(uuid4()), dead_ids[0], dead_ids[0]])
    assert (counts_of(response), set(response["sample"])) == ((2, 2, 0), {dead_ids[0], dead_ids[2]})
    assert api.counts() == {"ready": 2, "dead": 1}


@pytest.mark.parametrize("name", ["queue", "job_type", "reason", "error_type", "fingerprint", "dead_after"])
def test_replay_by_filter_replays_only_matching_dead_letters(api: Api, name: str) -> None:
    other = api.enqueue(queue=f"{api.queue}-other", max_attempts=1)
    api.fail(api.claim_one(queues=[other["queue"]]))
    matching = api.dead_letter({"message": "a 1", "error_type": "Net"}, job_type="mail")
    letter = api.get(f"/dead-letters/{matching['id']}")
    values = {**letter, "reason": "not_retryable", "error_type": "Net", "dead_after": letter["dead_at"]}
    response = replay(api, filter={name: values[name]})
    assert (counts_of(response), response["sample"]) == ((1, 1, 0), [matching["id"]])
    assert api.job(other["id"])["state"] == "dead"


def test_replay_with_a_limit_takes_the_oldest_and_reports_the_remaining(api: Api, dead_ids: list[str]) -> None:
    response = replay(api, filter={"queue": api.queue}, limit=2)
    assert (counts_of(response), response["sample"]) == ((3, 2, 1), dead_ids[:2])
    assert counts_of(replay(api, ids=dead_ids, limit=1)) == (1, 1, 0)


def test_replay_dry_run_only_counts(api: Api, dead_ids: list[str]) -> None:
    response = replay(api, filter={}, all=True, dry_run=True, limit=2)
    assert (counts_of(response), response["sample"]) == ((3, 0, 3), dead_ids[:2])
    assert api.counts() == {"dead": 3}


def test_replay_spread_schedules_jobs_one_after_the_other(api: Api, dead_ids: list[str]) -> None:
    replay(api, all=True, spread_seconds=3000)
    jobs = [api.job(job_id) for job_id in dead_ids]
    assert [job["state"] for job in jobs] == ["ready", "scheduled", "scheduled"]
    assert sorted(dead_ids, key=lambda job_id: parse_time(api.job(job_id)["run_at"])) == dead_ids
    assert api.counts() == {"ready": 1, "scheduled": 2}


@table(
    ("body", "pointer"),
    [
        ({}, "/filter"),
        ({"ids": [], "filter": {}}, "/filter"),
        ({"filter": {"colour": "red"}}, "/filter/colour"),
        ({"filter": {"dead_after": "2026-01-01T00:00:00"}}, "/filter/dead_after"),
        ({"ids": ["42"]}, "/ids/0"),
        ({"all": True, "limit": 0}, "/limit"),
        ({"all": True, "spread_seconds": -1}, "/spread_seconds"),
        ({"all": True, "overrides": {"state": "ready"}}, "/overrides/state"),
        ({"all": True, "overrides": {"queue": "a b"}}, "/overrides/queue"),
        ({"all": True, "overrides": {"payload_merge": [1]}}, "/overrides/payload_merge"),
        ({"all": True, "dryrun": True}, "/dryrun"),
    ],
)
def test_invalid_replay_is_rejected_with_a_pointer_and_replays_nothing(
    api: Api, dead_ids: list[str], body: Any, pointer: str
) -> None:
    assert replay(api, **body, status=422)["errors"][0]["pointer"] == pointer
    assert api.counts() == {"dead": 3}
