"""on_duplicate=replace: SQL and HTTP replace a job alike, whatever its history."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import KeyedEnqueues

SOURCES = ("sql", "http")
PER_JOB_COLUMNS = {
    "id",
    "lane",
    "unique_key",
    "group_key",
    "run_at",
    "started_at",
    "attempts",
    "depends_on",
    "waiting_for",
}
BODY: Json = {
    "job_type": "other",
    "priority": 9,
    "max_attempts": 2,
    "lease_seconds": 7,
    "timeout_seconds": 70,
    "tags": ["a"],
}

History = Callable[[Api, TestDatabase, Json], Any]
HISTORIES: dict[str, History] = {
    "ready": lambda api, db, job: None,
    "failed": lambda api, db, job: api.fail(job, retry_after_seconds=600),
    "snoozed": lambda api, db, job: api.snooze(job, 600, checkpoint={"n": 1}),
    "released": lambda api, db, job: api.release(job),
    "expired": lambda api, db, job: db.age(job["id"], 61),
}


def add_history(api: Api, db: TestDatabase, source: str, history: str) -> None:
    """Gives a history to the job with the unique key of this source."""
    if history not in ("ready", "scheduled", "blocked"):
        claimed = api.claim_one(job_types=[source], wait_seconds=20, worker_id="w")
        api.heartbeat_one(claimed, progress={"percent": 50}, checkpoint={"n": 1})
        HISTORIES[history](api, db, claimed)
    wait_until(lambda: db.value("SELECT state NOT IN ('pending', 'running') FROM jobs WHERE unique_key = $1", source))


def stored(db: TestDatabase, job_id: str) -> Json:
    """The stored columns without those that differ from job to job."""
    row = dict(db.row("SELECT * FROM jobs WHERE id = $1", job_id))
    return {name: value for name, value in row.items() if name not in PER_JOB_COLUMNS} | {
        "lease_token": row["lease_token"] is not None
    }


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 3600], ids=["now", "later"])
@pytest.mark.parametrize("history", [*HISTORIES, "scheduled", "blocked"])
@pytest.mark.parametrize("config", [{}, {"max_running_per_group": 1}, {"fair": True}], ids=["plain", "strict", "fair"])
def test_sql_and_http_replace_a_waiting_job_alike(
    keyed: KeyedEnqueues, db: TestDatabase, config: Json, history: str, after: int
) -> None:
    keyed.api.configure(**config)
    parent = keyed.api.enqueue(delay_seconds=600)["id"]
    waits: dict[str, Json] = {"scheduled": {"delay_seconds": 600}, "blocked": {"depends_on": [parent]}}
    ids = {
        source: keyed.http(source, job_type=source, group=source, payload=1, **waits.get(history, {}))["id"]
        for source in SOURCES
    }
    for source in SOURCES:
        add_history(keyed.api, db, source, history)
    assert keyed.sql("sql", on_duplicate="replace", delay_seconds=after, payload="2", **BODY) == ids["sql"]
    assert keyed.http("http", on_duplicate="replace", delay_seconds=after, payload=2, **BODY)["id"] == ids["http"]
    wait_until(lambda: stored(db, ids["sql"]) == stored(db, ids["http"]))
    assert stored(db, ids["sql"])["payload"] == "2"
    assert [keyed.api.job(ids[source])["group"] for source in SOURCES] == ["sql", "http"]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 60), (60, 0), (60, 60)])
def test_job_replaced_by_sql_is_counted_in_its_new_state(keyed: KeyedEnqueues, before: int, after: int) -> None:
    keyed.http(delay_seconds=before)
    keyed.sql(on_duplicate="replace", delay_seconds=after)
    assert keyed.api.counts() == {"scheduled" if after else "ready": 1}


def test_sql_does_not_replace_a_running_job(keyed: KeyedEnqueues) -> None:
    job_id = keyed.http(payload=1)["id"]
    claimed = keyed.api.claim_one()
    assert keyed.sql(on_duplicate="replace", payload="2") == job_id
    assert keyed.api.job(job_id)["payload"] == 1
    assert keyed.api.complete(claimed)["state"] == "completed"


def test_admitted_job_that_sql_postpones_frees_its_admission(keyed: KeyedEnqueues, db: TestDatabase) -> None:
    keyed.api.configure(max_running_per_group=1)
    first = keyed.http(group="g")["id"]
    wait_until(lambda: db.value("SELECT admission FROM jobs WHERE id = $1", first))
    second = keyed.api.enqueue(group="g")["id"]
    assert keyed.sql(on_duplicate="replace", delay_seconds=600, group_key="another") == first
    assert keyed.api.claim_one(wait_seconds=20)["id"] == second
    assert keyed.api.job(first)["group"] == "g"


def test_rolled_back_sql_replacement_changes_nothing(keyed: KeyedEnqueues) -> None:
    job_id = keyed.http(payload=1)["id"]
    with keyed.shop.transaction("ROLLBACK"):
        assert keyed.sql(on_duplicate="replace", payload="2") == job_id
        assert keyed.api.claim()["jobs"] == []  # a claim skips the locked row
    assert keyed.api.claim_one()["payload"] == 1
