"""POST /dead-letters/replay and POST /dead-letters/{id}/replay."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.api import Api, Json, when
from tests.database import TestDatabase
from tests.polls import Background


def replay(api: Api, *, status: int = 200, **body: Any) -> Json:
    answer: Json = api.post("/dead-letters/replay", body, status=status)
    return answer


def counts_of(answer: Json) -> tuple[int, int, int]:
    return answer["matched"], answer["replayed"], answer["remaining"]


@pytest.fixture
def dead(api: Api) -> list[str]:
    """Three dead letters, oldest first."""
    return [api.dead(payload={"n": n})["id"] for n in range(3)]


def test_a_replayed_job_starts_anew_with_its_id_and_its_history(api: Api) -> None:
    job = api.enqueue(max_attempts=2, payload={"n": 1}, tags=["t"], metadata={"m": 1}, priority=3, group="g")
    for message in ("one", "two"):
        api.fail(api.claim_one(wait_seconds=20), message, retry_after_seconds=0)
    alive = api.post(f"/dead-letters/{job['id']}/replay")
    expected = {**job, "replay_count": 1, "deliveries": 2, "run_at": alive["run_at"], "error": {"message": "two"}}
    assert alive == expected
    assert [attempt["error"]["message"] for attempt in api.attempts(job)] == ["one", "two"]
    api.get(f"/dead-letters/{job['id']}", status=404)


def test_a_replayed_job_has_all_its_attempts_again(api: Api) -> None:
    job = api.dead(max_attempts=2)
    api.post(f"/dead-letters/{job['id']}/replay")
    claimed = api.claim_one()
    assert (claimed["attempt"], claimed["deliveries"]) == (1, 2)
    assert api.fail(claimed)["state"] == "scheduled"


def test_crashes_start_anew(api: Api, db: TestDatabase, eventually: Callable[..., Any]) -> None:
    job = api.enqueue(max_attempts=1)
    api.claim_one()
    db.age(job["id"], 61)
    eventually(lambda: api.job(job["id"])["state"] == "dead")
    assert api.job(job["id"])["crashes"] == 1
    alive = api.post(f"/dead-letters/{job['id']}/replay")
    assert (alive["attempt"], alive["crashes"], alive["deliveries"]) == (0, 0, 1)


def test_every_replay_is_counted(api: Api) -> None:
    job = api.dead()
    for count in (1, 2):
        assert api.post(f"/dead-letters/{job['id']}/replay")["replay_count"] == count
        api.fail(api.claim_one(), retryable=False)


def test_the_checkpoint_survives_the_replay(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one()
    api.heartbeat_one(claimed, checkpoint={"page": 7})
    api.fail(claimed, retryable=False)
    api.post(f"/dead-letters/{job['id']}/replay")
    assert api.claim_one()["checkpoint"] == {"page": 7}


def test_the_token_of_before_is_lost(api: Api) -> None:
    job = api.enqueue()
    claimed = api.claim_one()
    api.fail(claimed, retryable=False)
    api.post(f"/dead-letters/{job['id']}/replay")
    assert api.complete(claimed, status=409)["code"] == "lease_lost"


def test_a_replay_wakes_a_poll(api: Api, background: Background) -> None:
    job = api.dead()
    poll = background.submit(api.claim_one, wait_seconds=20)
    api.post(f"/dead-letters/{job['id']}/replay")
    assert poll.result()["id"] == job["id"]


def test_replaying_twice_replays_once(api: Api) -> None:
    job = api.dead()
    api.post(f"/dead-letters/{job['id']}/replay")
    assert api.post(f"/dead-letters/{job['id']}/replay", status=404)["code"] == "not_found"
    assert counts_of(replay(api, ids=[job["id"]])) == (0, 0, 0)
    assert api.counts() == {"ready": 1}


def test_replaying_twice_at_once_replays_once(api: Api, dead: list[str], background: Background) -> None:
    answers = list(background.map(lambda _: replay(api, ids=dead), range(8)))
    assert sum(answer["replayed"] for answer in answers) == 3
    assert api.counts() == {"ready": 3}


def test_ids_are_replayed_and_others_are_not(api: Api, dead: list[str]) -> None:
    answer = replay(api, ids=[dead[2], str(uuid4()), dead[0], dead[0]])
    assert (counts_of(answer), set(answer["sample"])) == ((2, 2, 0), {dead[0], dead[2]})
    assert api.counts() == {"ready": 2, "dead": 1}


@pytest.mark.parametrize("name", ["queue", "job_type", "reason", "error_type", "fingerprint", "dead_after"])
def test_a_filter_replays_what_fulfils_it(api: Api, name: str) -> None:
    other = api.enqueue(queue=f"{api.queue}-other", max_attempts=1)
    api.fail(api.claim_one(queues=[other["queue"]]))
    wanted = api.dead({"message": "a 1", "error_type": "Net"}, job_type="mail")
    letter = api.get(f"/dead-letters/{wanted['id']}")
    values = {**letter, "reason": "not_retryable", "error_type": "Net", "dead_after": letter["dead_at"]}
    answer = replay(api, filter={name: values[name]})
    assert (counts_of(answer), answer["sample"]) == ((1, 1, 0), [wanted["id"]])
    assert api.job(other["id"])["state"] == "dead"


def test_a_limit_takes_the_oldest_and_tells_what_remains(api: Api, dead: list[str]) -> None:
    answer = replay(api, filter={"queue": api.queue}, limit=2)
    assert (counts_of(answer), answer["sample"]) == ((3, 2, 1), dead[:2])
    assert counts_of(replay(api, ids=dead, limit=1)) == (1, 1, 0)


def test_a_dry_run_only_counts(api: Api, dead: list[str]) -> None:
    answer = replay(api, filter={}, all=True, dry_run=True, limit=2)
    assert (counts_of(answer), answer["sample"]) == ((3, 0, 3), dead[:2])
    assert api.counts() == {"dead": 3}


def test_a_spread_sets_them_off_one_after_the_other(api: Api, dead: list[str]) -> None:
    replay(api, all=True, spread_seconds=3000)
    jobs = [api.job(job_id) for job_id in dead]
    assert [job["state"] for job in jobs] == ["ready", "scheduled", "scheduled"]
    assert sorted(dead, key=lambda job_id: when(api.job(job_id)["run_at"])) == dead
    assert api.counts() == {"ready": 1, "scheduled": 2}


@pytest.mark.parametrize(
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
def test_a_bad_request_is_pointed_at_and_replays_nothing(api: Api, dead: list[str], body: Any, pointer: str) -> None:
    assert replay(api, **body, status=422)["errors"][0]["pointer"] == pointer
    assert api.counts() == {"dead": 3}
