"""on_duplicate=replace: whatever the job that has the key has been through, it becomes the same by SQL as over HTTP."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Asks

WAYS = ("sql", "http")
OWN = {"id", "lane", "unique_key", "group_key", "run_at", "started_at", "attempts", "depends_on", "awaits"}
BODY: Json = {
    "job_type": "other",
    "priority": 9,
    "max_attempts": 2,
    "lease_seconds": 7,
    "timeout_seconds": 70,
    "tags": ["a"],
}

Past = Callable[[Api, TestDatabase, Json], Any]
PASTS: dict[str, Past] = {
    "ready": lambda api, db, job: None,
    "failed": lambda api, db, job: api.fail(job, retry_after_seconds=600),
    "snoozed": lambda api, db, job: api.snooze(job, 600, checkpoint={"n": 1}),
    "released": lambda api, db, job: api.release(job),
    "expired": lambda api, db, job: db.age(job["id"], 61),
}


def begun(api: Api, db: TestDatabase, way: str, past: str) -> None:
    """The job that has the key of this way gets a past."""
    if past not in ("ready", "scheduled", "blocked"):
        held = api.claim_one(job_types=[way], wait_seconds=20, worker_id="w")
        api.heartbeat_one(held, progress={"percent": 50}, checkpoint={"n": 1})
        PASTS[past](api, db, held)
    wait_until(lambda: db.value("SELECT state NOT IN ('parked', 'running') FROM jobs WHERE unique_key = $1", way))


def stored(db: TestDatabase, job_id: str) -> Json:
    """But for what is the job's own."""
    row = dict(db.row("SELECT * FROM jobs WHERE id = $1", job_id))
    return {name: value for name, value in row.items() if name not in OWN} | {
        "lease_token": row["lease_token"] is not None
    }


@pytest.mark.parametrize("after", [0, 3600], ids=["now", "later"])
@pytest.mark.parametrize("past", [*PASTS, "scheduled", "blocked"])
@pytest.mark.parametrize("config", [{}, {"max_running_per_group": 1}, {"fair": True}], ids=["plain", "strict", "fair"])
def test_a_waiting_job_is_replaced_as_over_http(
    poll_history: Asks, db: TestDatabase, config: Json, past: str, after: int
) -> None:
    poll_history.api.configure(**config)
    parent = poll_history.api.enqueue(delay_seconds=600)["id"]
    waits: dict[str, Json] = {"scheduled": {"delay_seconds": 600}, "blocked": {"depends_on": [parent]}}
    ids = {way: poll_history.http(way, job_type=way, group=way, payload=1, **waits.get(past, {}))["id"] for way in WAYS}
    for way in WAYS:
        begun(poll_history.api, db, way, past)
    assert poll_history.sql("sql", on_duplicate="replace", delay_seconds=after, payload="2", **BODY) == ids["sql"]
    assert (
        poll_history.http("http", on_duplicate="replace", delay_seconds=after, payload=2, **BODY)["id"] == ids["http"]
    )
    wait_until(lambda: stored(db, ids["sql"]) == stored(db, ids["http"]))
    assert stored(db, ids["sql"])["payload"] == "2"
    assert [poll_history.api.job(ids[way])["group"] for way in WAYS] == ["sql", "http"]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 60), (60, 0), (60, 60)])
def test_what_is_replaced_is_counted_in_its_new_state(poll_history: Asks, before: int, after: int) -> None:
    poll_history.http(delay_seconds=before)
    poll_history.sql(on_duplicate="replace", delay_seconds=after)
    assert poll_history.api.counts() == {"scheduled" if after else "ready": 1}


def test_a_running_job_is_not_replaced(poll_history: Asks) -> None:
    job_id = poll_history.http(payload=1)["id"]
    held = poll_history.api.claim_one()
    assert poll_history.sql(on_duplicate="replace", payload="2") == job_id
    assert poll_history.api.job(job_id)["payload"] == 1
    assert poll_history.api.complete(held)["state"] == "completed"


def test_a_job_that_has_its_turn_and_is_put_off_gives_it_to_the_next(poll_history: Asks, db: TestDatabase) -> None:
    poll_history.api.configure(max_running_per_group=1)
    first = poll_history.http(group="g")["id"]
    wait_until(lambda: db.value("SELECT turn FROM jobs WHERE id = $1", first))
    second = poll_history.api.enqueue(group="g")["id"]
    assert poll_history.sql(on_duplicate="replace", delay_seconds=600, group_key="another") == first
    assert poll_history.api.claim_one(wait_seconds=20)["id"] == second
    assert poll_history.api.job(first)["group"] == "g"


def test_a_replacement_rolls_back_too(poll_history: Asks) -> None:
    job_id = poll_history.http(payload=1)["id"]
    with poll_history.shop.transaction("ROLLBACK"):
        assert poll_history.sql(on_duplicate="replace", payload="2") == job_id
        assert poll_history.api.claim()["jobs"] == []  # nobody begins it while it may change
    assert poll_history.api.claim_one()["payload"] == 1
