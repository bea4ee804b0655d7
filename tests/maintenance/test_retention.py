"""Finished jobs go by partition when their day is over, dead letters by age; queued work never."""

import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.maintenance.conftest import Retain, day_of, keep_until, make_partition, partitions

DAY = 24 * 60 * 60


@pytest.fixture
def done(api: Api) -> Json:
    """A completed job."""
    job = api.enqueue()
    api.complete(api.claim_one())
    return job


def home_of(db: TestDatabase, job: Json) -> str:
    name: str = db.value("SELECT tableoid::regclass::text FROM finished_jobs WHERE id = $1", job["id"])
    return name


@pytest.mark.parametrize(("mode", "archive"), [("drop", False), ("detach", True)])
def test_partitions_are_made_ahead(db: TestDatabase, retain: Retain, mode: str, archive: bool) -> None:
    retain(finished_seconds=100 * DAY, finished_mode=mode)
    assert {day_of(db, days, archive=archive) for days in (100, 101, 102)} <= partitions(db, attached=True)


def test_running_it_again_changes_nothing(db: TestDatabase, retain: Retain) -> None:
    retain()
    before = partitions(db)
    retain()
    assert partitions(db) == before


def test_what_finishes_goes_into_the_partition_of_its_day(api: Api, db: TestDatabase, retain: Retain) -> None:
    retain()
    job = api.enqueue()
    api.complete(api.claim_one())
    assert home_of(db, job) in {day_of(db, 7), day_of(db, 8)}


def test_what_lies_in_the_default_partition_is_moved(db: TestDatabase, retain: Retain, done: Json) -> None:
    keep_until(db, done["id"], 50)
    assert home_of(db, done) == "finished_jobs_default"
    retain(finished_seconds=49 * DAY)
    assert home_of(db, done) == day_of(db, 50)


def test_what_lies_there_from_other_settings_is_moved_too_and_goes_in_time(
    api: Api, db: TestDatabase, retain: Retain, done: Json
) -> None:
    other = api.enqueue()
    api.cancel(other)
    keep_until(db, done["id"], 40)
    keep_until(db, other["id"], -3)
    retain()
    assert home_of(db, done) == day_of(db, 40)
    assert db.value("SELECT count(*) FROM finished_jobs WHERE id = $1", other["id"]) == 0
    assert api.counts() == {"completed": 1}


def test_only_days_that_are_over_are_dropped(db: TestDatabase, retain: Retain) -> None:
    names = {days: make_partition(db, days) for days in (-400, -1, 0, 1)}
    retain()
    left = partitions(db)
    assert [days for days, name in names.items() if name in left] == [0, 1]


def test_what_is_past_its_time_is_gone_for_readers_before_its_partition_goes(
    api: Api, db: TestDatabase, done: Json
) -> None:
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute' WHERE id = $1", done["id"])
    api.get(f"/jobs/{done['id']}", status=404)
    api.get(f"/jobs/{done['id']}/attempts", status=404)
    api.cancel(done, status=404)
    assert api.get("/jobs") == {"items": []}


def test_retained_counts_follow_a_dropped_partition(api: Api, db: TestDatabase, retain: Retain, done: Json) -> None:
    kept, cancelled = api.enqueue(), api.enqueue()
    api.complete(api.claim_one())
    api.cancel(cancelled)
    make_partition(db, -2)
    for job in (done, cancelled):
        keep_until(db, job["id"], -2)
    retain()
    assert api.job(kept["id"])["state"] == "completed"
    assert api.counts() == {"completed": 1}
    assert api.stats()["rates"]["completed"]["last_1m"] == 2


def test_a_partition_of_the_archive_is_detached_and_keeps_its_jobs(
    api: Api, db: TestDatabase, retain: Retain, done: Json
) -> None:
    name = make_partition(db, -2, archive=True)
    keep_until(db, done["id"], -2, archive=True)
    retain()
    assert name in partitions(db) - partitions(db, attached=True)
    assert str(db.value(f"SELECT id FROM {name}")) == done["id"]
    api.get(f"/jobs/{done['id']}", status=404)
    assert api.counts() == {}


def test_a_broker_that_detaches_marks_its_finished_jobs_for_the_archive(
    api: Api, dsn: str, db: TestDatabase, retain: Retain
) -> None:
    with threaded_broker(QUICK.model_copy(update={"finished_mode": "detach"}), dsn) as broker:
        other = Api(broker.http, api.queue)
        done, cancelled = other.enqueue(), other.enqueue()
        other.complete(other.claim_one())
        other.cancel(cancelled)
    assert {str(row["id"]) for row in db.rows("SELECT id FROM finished_jobs WHERE archive")} == {
        done["id"],
        cancelled["id"],
    }


def test_queued_work_is_never_removed(api: Api, db: TestDatabase, retain: Retain) -> None:
    ready, later = api.enqueue(), api.enqueue(delay_seconds=60)
    running = api.enqueue(priority=1)
    api.claim_one()
    db.execute("UPDATE jobs SET run_at = run_at - interval '900 days' WHERE state <> 'scheduled'")
    db.execute("UPDATE jobs SET started_at = started_at - interval '900 days'")
    retain(finished_seconds=1, dead_letter_seconds=1)
    assert [api.job(job["id"])["state"] for job in (ready, later, running)] == ["ready", "scheduled", "running"]


def test_dead_letters_go_by_age(api: Api, db: TestDatabase, retain: Retain) -> None:
    old, new = api.dead(), api.dead()
    db.execute("UPDATE dead_letters SET dead_at = dead_at - interval '91 days' WHERE id = $1", old["id"])
    retain()
    api.get(f"/dead-letters/{old['id']}", status=404)
    assert api.job(new["id"])["state"] == "dead"
    assert api.counts() == {"dead": 1}


def test_more_old_dead_letters_than_one_sweep_takes_go_in_one_run(api: Api, db: TestDatabase, retain: Retain) -> None:
    api.enqueue_many(600)
    failed: Json = {"outcome": "fail", "error": {"message": "no"}, "retryable": False}
    held = api.claim(max_jobs=600)["jobs"]
    api.settle(*[{**failed, "job_id": job["id"], "lease_token": job["lease_token"]} for job in held])
    db.execute("UPDATE dead_letters SET dead_at = dead_at - interval '91 days'")
    retain()
    assert api.counts() == {}


def test_keys_are_forgotten_when_their_time_is_over(api: Api, db: TestDatabase, retain: Retain) -> None:
    api.batch({}, key="old")
    db.execute("UPDATE keys SET expires_at = now() - interval '1 minute'")
    first = api.batch({}, key="new")
    retain()
    assert db.value("SELECT count(*) FROM keys") == 1
    assert api.batch({}, key="new") == first


def test_workers_are_forgotten_and_later_those_that_were_told_something(
    api: Api, db: TestDatabase, retain: Retain
) -> None:
    names = [f"{api.queue}-{name}" for name in ("gone", "drained", "drained-long-gone", "here")]
    gone, drained, long_gone, here = names
    for name in names:
        api.claim(worker_id=name)
    for name in (drained, long_gone):
        api.post(f"/workers/{name}/drain")
    db.execute("UPDATE workers SET last_seen_at = now() - interval '2 days' WHERE id = ANY($1)", [gone, drained])
    db.execute("UPDATE workers SET last_seen_at = now() - interval '8 days' WHERE id = $1", long_gone)
    retain()
    assert [worker["worker_id"] for worker in api.get("/workers")["items"]] == [drained, here]


def test_old_statistics_are_forgotten_but_not_the_counts(api: Api, db: TestDatabase, retain: Retain) -> None:
    api.enqueue()
    db.execute("INSERT INTO stat_rates VALUES (1, now() - interval '3 hours', 1, 1, 1, 1), (1, now(), 1, 1, 1, 1)")
    db.execute("INSERT INTO stat_times VALUES (1, now() - interval '3 hours', 'run', 1, 1), (1, now(), 'run', 1, 1)")
    retain()
    for table in ("stat_rates", "stat_times"):
        assert db.value(f"SELECT count(*) FROM {table} WHERE lane = 1") == 1
    assert api.counts() == {"ready": 1}
