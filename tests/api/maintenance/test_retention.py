"""Retention: finished jobs are deleted by partition, dead letters by age, queued jobs never."""

import pytest

from tests.api.maintenance.conftest import RunRetention, keep_until, make_partition, partition_name, partitions
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase

DAY = 24 * 60 * 60


@pytest.fixture
def completed_job(api: Api) -> Json:
    """A completed job."""
    job = api.enqueue()
    api.complete(api.claim_one())
    return job


def partition_of(db: TestDatabase, job: Json) -> str:
    name: str = db.value("SELECT tableoid::regclass::text FROM finished_jobs WHERE id = $1", job["id"])
    return name


@pytest.mark.parametrize(("mode", "archive"), [("drop", False), ("detach", True)])
def test_partitions_are_created_ahead(db: TestDatabase, run_retention: RunRetention, mode: str, archive: bool) -> None:
    run_retention(finished_seconds=100 * DAY, finished_mode=mode)
    assert {partition_name(db, days, archive=archive) for days in (100, 101, 102)} <= partitions(db, attached=True)


def test_second_retention_run_changes_nothing(db: TestDatabase, run_retention: RunRetention) -> None:
    run_retention()
    before = partitions(db)
    run_retention()
    assert partitions(db) == before


def test_finished_job_goes_into_the_partition_of_its_day(
    api: Api, db: TestDatabase, run_retention: RunRetention
) -> None:
    run_retention()
    job = api.enqueue()
    api.complete(api.claim_one())
    assert partition_of(db, job) in {partition_name(db, 7), partition_name(db, 8)}


def test_job_in_the_default_partition_is_moved_to_its_day(
    db: TestDatabase, run_retention: RunRetention, completed_job: Json
) -> None:
    keep_until(db, completed_job["id"], 50)
    assert partition_of(db, completed_job) == "finished_jobs_default"
    run_retention(finished_seconds=49 * DAY)
    assert partition_of(db, completed_job) == partition_name(db, 50)


def test_jobs_kept_under_other_settings_are_moved_and_deleted_in_time(
    api: Api, db: TestDatabase, run_retention: RunRetention, completed_job: Json
) -> None:
    other = api.enqueue()
    api.cancel(other)
    keep_until(db, completed_job["id"], 40)
    keep_until(db, other["id"], -3)
    run_retention()
    assert partition_of(db, completed_job) == partition_name(db, 40)
    assert db.value("SELECT count(*) FROM finished_jobs WHERE id = $1", other["id"]) == 0
    assert api.counts() == {"completed": 1}


def test_only_partitions_of_past_days_are_dropped(db: TestDatabase, run_retention: RunRetention) -> None:
    names = {days: make_partition(db, days) for days in (-400, -1, 0, 1)}
    run_retention()
    left = partitions(db)
    assert [days for days, name in names.items() if name in left] == [0, 1]


def test_job_past_its_retention_is_hidden_before_its_partition_is_dropped(
    api: Api, db: TestDatabase, completed_job: Json
) -> None:
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute' WHERE id = $1", completed_job["id"])
    api.get(f"/jobs/{completed_job['id']}", status=404)
    api.get(f"/jobs/{completed_job['id']}/attempts", status=404)
    api.cancel(completed_job, status=404)
    assert api.get("/jobs") == {"items": []}


def test_counts_follow_a_dropped_partition(
    api: Api, db: TestDatabase, run_retention: RunRetention, completed_job: Json
) -> None:
    kept, cancelled = api.enqueue(), api.enqueue()
    api.complete(api.claim_one())
    api.cancel(cancelled)
    make_partition(db, -2)
    for job in (completed_job, cancelled):
        keep_until(db, job["id"], -2)
    run_retention()
    assert api.job(kept["id"])["state"] == "completed"
    assert api.counts() == {"completed": 1}
    assert api.stats()["rates"]["completed"]["last_1m"] == 2


def test_archive_partition_is_detached_and_keeps_its_jobs(
    api: Api, db: TestDatabase, run_retention: RunRetention, completed_job: Json
) -> None:
    name = make_partition(db, -2, archive=True)
    keep_until(db, completed_job["id"], -2, archive=True)
    run_retention()
    assert name in partitions(db) - partitions(db, attached=True)
    assert str(db.value(f"SELECT id FROM {name}")) == completed_job["id"]
    api.get(f"/jobs/{completed_job['id']}", status=404)
    assert api.counts() == {}


def test_broker_in_detach_mode_marks_finished_jobs_for_the_archive(
    api: Api, dsn: str, db: TestDatabase, run_retention: RunRetention
) -> None:
    with threaded_broker(TEST_SETTINGS.model_copy(update={"finished_mode": "detach"}), dsn) as broker:
        other = Api(broker.http, api.queue)
        done, cancelled = other.enqueue(), other.enqueue()
        other.complete(other.claim_one())
        other.cancel(cancelled)
    assert {str(row["id"]) for row in db.rows("SELECT id FROM finished_jobs WHERE archive")} == {
        done["id"],
        cancelled["id"],
    }


def test_retention_never_removes_queued_jobs(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    ready, later = api.enqueue(), api.enqueue(delay_seconds=60)
    running = api.enqueue(priority=1)
    api.claim_one()
    db.execute("UPDATE jobs SET run_at = run_at - interval '900 days' WHERE state <> 'scheduled'")
    db.execute("UPDATE jobs SET started_at = started_at - interval '900 days'")
    run_retention(finished_seconds=1, dead_letter_seconds=1)
    assert [api.job(job["id"])["state"] for job in (ready, later, running)] == ["ready", "scheduled", "running"]


def test_old_dead_letters_are_deleted(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    old, new = api.dead_letter(), api.dead_letter()
    db.execute("UPDATE dead_letters SET dead_at = dead_at - interval '91 days' WHERE id = $1", old["id"])
    run_retention()
    api.get(f"/dead-letters/{old['id']}", status=404)
    assert api.job(new["id"])["state"] == "dead"
    assert api.counts() == {"dead": 1}


def test_retention_run_deletes_several_batches_of_dead_letters(
    api: Api, db: TestDatabase, run_retention: RunRetention
) -> None:
    api.enqueue_many(600)
    failed: Json = {"outcome": "fail", "error": {"message": "no"}, "retryable": False}
    held = api.claim(max_jobs=600)["jobs"]
    api.settle(*[{**failed, "job_id": job["id"], "lease_token": job["lease_token"]} for job in held])
    db.execute("UPDATE dead_letters SET dead_at = dead_at - interval '91 days'")
    run_retention()
    assert api.counts() == {}


def test_expired_idempotency_keys_are_deleted(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    api.batch({}, key="old")
    db.execute("UPDATE deduplication_keys SET expires_at = now() - interval '1 minute'")
    first = api.batch({}, key="new")
    run_retention()
    assert db.value("SELECT count(*) FROM deduplication_keys") == 1
    assert api.batch({}, key="new") == first


def test_unseen_workers_are_deleted_and_those_with_a_directive_later(
    api: Api, db: TestDatabase, run_retention: RunRetention
) -> None:
    names = [f"{api.queue}-{name}" for name in ("gone", "drained", "drained-long-gone", "here")]
    gone, drained, long_gone, here = names
    for name in names:
        api.claim(worker_id=name)
    for name in (drained, long_gone):
        api.post(f"/workers/{name}/drain")
    db.execute("UPDATE workers SET last_seen_at = now() - interval '2 days' WHERE id = ANY($1)", [gone, drained])
    db.execute("UPDATE workers SET last_seen_at = now() - interval '8 days' WHERE id = $1", long_gone)
    run_retention()
    assert [worker["worker_id"] for worker in api.get("/workers")["items"]] == [drained, here]


def test_old_statistics_are_deleted_but_not_the_counts(api: Api, db: TestDatabase, run_retention: RunRetention) -> None:
    api.enqueue()
    db.execute("INSERT INTO stat_rates VALUES (1, now() - interval '3 hours', 1, 1, 1, 1), (1, now(), 1, 1, 1, 1)")
    db.execute(
        "INSERT INTO stat_durations VALUES (1, now() - interval '3 hours', 'run', 1, 1), (1, now(), 'run', 1, 1)"
    )
    run_retention()
    for table in ("stat_rates", "stat_durations"):
        assert db.value(f"SELECT count(*) FROM {table} WHERE lane = 1") == 1
    assert api.counts() == {"ready": 1}
