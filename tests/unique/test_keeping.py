"""How long keys are kept: the chore that forgets keys leaves those of jobs that live. And what replay does to them."""

from tests.api import Api
from tests.database import TestDatabase
from tests.maintenance.conftest import Retain
from tests.unique.keys import count_jobs, has, window_over


def look_at_all(db: TestDatabase) -> None:
    """As if the time had come to look at every key."""
    db.execute("UPDATE keys SET expires_at = now() - interval '1 second'")


def count_keys(db: TestDatabase) -> int:
    return int(db.value("SELECT count(*) FROM keys"))


def test_a_job_that_waits_or_runs_keeps_its_key_however_long_that_takes(
    api: Api, db: TestDatabase, retain: Retain
) -> None:
    running = api.enqueue(**has("running"))
    api.claim_one()
    waiting = [api.enqueue(**has("ready")), api.enqueue(**has("delayed", delay_seconds=3600))]
    for _ in range(3):
        look_at_all(db)
        retain()
    again = [api.enqueue(status=200, **has(key)) for key in ("running", "ready", "delayed")]
    assert [job["id"] for job in again] == [job["id"] for job in (running, *waiting)]
    assert count_keys(db) == 3


def test_the_keys_of_jobs_that_have_ended_are_forgotten(api: Api, db: TestDatabase, retain: Retain) -> None:
    api.enqueue(**has("completed"))
    api.complete(api.claim_one())
    api.dead(**has("dead"))
    api.cancel(api.enqueue(**has("cancelled")))
    look_at_all(db)
    retain()
    assert count_keys(db) == 0
    for key in ("completed", "dead", "cancelled"):
        api.enqueue(**has(key))


def test_a_key_is_not_looked_at_before_its_time(api: Api, db: TestDatabase, retain: Retain) -> None:
    first = api.enqueue(**has(for_seconds=3600))
    api.complete(api.claim_one())
    retain()
    assert api.enqueue(status=200, **has())["id"] == first["id"]


def test_a_window_that_is_over_is_not_prolonged_because_its_job_still_waits(
    api: Api, db: TestDatabase, retain: Retain
) -> None:
    first = api.enqueue(**has(for_seconds=60))
    window_over(db)
    retain()
    assert api.enqueue(**has(for_seconds=60))["id"] != first["id"]


def test_more_keys_than_one_batch_are_looked_at(api: Api, db: TestDatabase, retain: Retain) -> None:
    api.batch(*[has(f"k{n}") for n in range(700)])
    api.claim(max_jobs=300)
    db.execute("DELETE FROM jobs WHERE state = 'running'")
    look_at_all(db)
    retain()
    assert count_keys(db) == 400
    assert api.batch(*[has(f"k{n}") for n in range(700)])["created"] == 300


def test_a_replayed_job_has_its_key_again(api: Api) -> None:
    first = api.dead(**has())
    assert api.post(f"/dead-letters/{first['id']}/replay")["unique_key"] == "k"
    assert api.enqueue(status=200, **has())["id"] == first["id"]


def test_a_replayed_job_runs_even_if_another_has_its_key_since(api: Api, db: TestDatabase) -> None:
    """An operator's word counts; the key stays with the one that has it."""
    first = api.dead(**has())
    second = api.enqueue(**has())
    assert api.post(f"/dead-letters/{first['id']}/replay")["state"] == "ready"
    assert api.enqueue(status=200, **has())["id"] == second["id"]
    assert {job["id"] for job in api.claim(max_jobs=5)["jobs"]} == {first["id"], second["id"]}
    assert count_jobs(db) == 2


def test_a_job_that_was_replayed_into_another_queue_has_no_key_there(api: Api) -> None:
    api.dead(**has())
    other = f"{api.queue}-other"
    api.post("/dead-letters/replay", {"filter": {"queue": api.queue}, "overrides": {"queue": other}})
    (moved,) = api.get("/jobs", queue=other)["items"]
    assert "unique_key" not in moved
    assert api.enqueue(queue=other, **has())["id"] != moved["id"]
