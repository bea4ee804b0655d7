"""Lifetime of unique keys: the cleaner keeps those of live jobs. Replays and unique keys."""

import pytest

from tests.api.maintenance.conftest import RunRetention
from tests.api.unique_keys.keys import count_jobs, end_windows, with_key
from tests.api_client import Api
from tests.database import TestDatabase


def make_all_keys_due(db: TestDatabase) -> None:
    """Makes every key due for the check of the cleaner."""
    db.execute("UPDATE deduplication_keys SET expires_at = now() - interval '1 second'")


def count_keys(db: TestDatabase) -> int:
    return int(db.value("SELECT count(*) FROM deduplication_keys"))


def test_live_job_keeps_its_unique_key_however_long_it_waits_or_runs(
    api: Api, db: TestDatabase, run_retention: RunRetention
) -> None:
    running = api.enqueue(**with_key("running"))
    api.claim_one()
    waiting = [api.enqueue(**with_key("ready")), api.enqueue(**with_key("delayed", delay_seconds=3600))]
    for _ in range(3):
        make_all_keys_due(db)
        run_retention()
    again = [api.enqueue(status=200, **with_key(key)) for key in ("running", "ready", "delayed")]
    assert [job["id"] for job in again] == [job["id"] for job in (running, *waiting)]
    assert count_keys(db) == 3


def test_unique_keys_of_finished_jobs_are_deleted(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    api.enqueue(**with_key("completed"))
    api.complete(api.claim_one())
    api.dead_letter(**with_key("dead"))
    api.cancel(api.enqueue(**with_key("cancelled")))
    make_all_keys_due(db)
    run_retention()
    assert count_keys(db) == 0
    for key in ("completed", "dead", "cancelled"):
        api.enqueue(**with_key(key))


def test_unexpired_unique_key_is_not_deleted(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    first = api.enqueue(**with_key(for_seconds=3600))
    api.complete(api.claim_one())
    run_retention()
    assert api.enqueue(status=200, **with_key())["id"] == first["id"]


def test_waiting_job_does_not_extend_the_window_of_its_unique_key(
    api: Api, db: TestDatabase, run_retention: RunRetention
) -> None:
    first = api.enqueue(**with_key(for_seconds=60))
    end_windows(db)
    run_retention()
    assert api.enqueue(**with_key(for_seconds=60))["id"] != first["id"]


@pytest.mark.slow
def test_more_unique_keys_than_one_batch_are_checked(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    api.batch(*[with_key(f"k{n}") for n in range(700)])
    api.claim(max_jobs=300)
    db.execute("DELETE FROM jobs WHERE state = 'running'")
    make_all_keys_due(db)
    run_retention()
    assert count_keys(db) == 400
    assert api.batch(*[with_key(f"k{n}") for n in range(700)])["created"] == 300


def test_replayed_job_has_its_unique_key_again(api: Api) -> None:
    first = api.dead_letter(**with_key())
    assert api.post(f"/dead-letters/{first['id']}/replay")["unique_key"] == "k"
    assert api.enqueue(status=200, **with_key())["id"] == first["id"]


def test_replayed_job_runs_even_if_another_job_has_its_unique_key(api: Api, db: TestDatabase) -> None:
    """The replay is an operator's decision. The key stays with the job that has it."""
    first = api.dead_letter(**with_key())
    second = api.enqueue(**with_key())
    assert api.post(f"/dead-letters/{first['id']}/replay")["state"] == "ready"
    assert api.enqueue(status=200, **with_key())["id"] == second["id"]
    assert {job["id"] for job in api.claim(max_jobs=5)["jobs"]} == {first["id"], second["id"]}
    assert count_jobs(db) == 2


def test_job_replayed_into_another_queue_has_no_unique_key(api: Api) -> None:
    api.dead_letter(**with_key())
    other = f"{api.queue}-other"
    api.post("/dead-letters/replay", {"filter": {"queue": api.queue}, "overrides": {"queue": other}})
    (moved,) = api.get("/jobs", queue=other)["items"]
    assert "unique_key" not in moved
    assert api.enqueue(queue=other, **with_key())["id"] != moved["id"]
