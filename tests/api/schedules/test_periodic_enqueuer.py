"""Due schedules, and POST /schedules/{name}/run."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.schedules.enqueuer import PeriodicEnqueuer
from tests.api.schedules.conftest import HOUR, Schedules, reject_jobs_of
from tests.api_client import Api, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase
from tests.polls import Background

LOCK_WAITS_ON_SCHEDULES = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%schedules%'"
)


def test_due_schedule_enqueues_its_job_and_advances(schedules: Schedules, db: TestDatabase) -> None:
    created = schedules.put("report", job={"payload": {"n": 1}, "tags": ["hourly"], "priority": 7})
    schedules.age(HOUR, "report")
    after = schedules.wait_until_advanced("report")
    (job,) = schedules.jobs()
    assert (job["schedule"], job["state"], job["payload"], job["tags"], job["priority"]) == (
        "report",
        "ready",
        {"n": 1},
        ["hourly"],
        7,
    )
    assert (after["last_job_id"], after["updated_at"]) == (job["id"], created["updated_at"])
    assert (
        parse_time(created["created_at"])
        < parse_time(after["last_run_at"])
        < parse_time(db.instant(0))
        < parse_time(after["next_run_at"])
    )


@pytest.mark.slow
def test_due_schedule_wakes_a_waiting_poll(schedules: Schedules, api: Api) -> None:
    schedules.put(every_seconds=1)
    assert [api.claim_one(wait_seconds=20)["job_type"] for _ in range(2)] == ["test", "test"]


def test_due_cron_schedule_fires(schedules: Schedules) -> None:
    schedules.put(cron="0 0 1 1 *", misfire="once")
    schedules.age(366 * 24 * HOUR)
    assert parse_time(schedules.wait_until_advanced()["next_run_at"]).strftime("%m-%d %H:%M") == "01-01 00:00"
    assert len(schedules.jobs()) == 1


@pytest.mark.slow
def test_concurrent_brokers_fire_each_run_once(
    schedules: Schedules, api: Api, periodic_enqueuer: PeriodicEnqueuer, loop: Loop, dsn: str
) -> None:
    names = [f"s{n}" for n in range(20)]
    for name in names:
        schedules.put(name, job={"tags": [name]})

    async def run_three_times() -> None:
        await asyncio.gather(*[periodic_enqueuer.run_once() for _ in range(3)])

    with threaded_broker(TEST_SETTINGS, dsn):
        schedules.db.execute(
            "UPDATE schedules "
            "SET created_at = created_at - interval '1 hour', next_run_at = next_run_at - interval '1 hour'"
        )
        loop.run(run_three_times())
        for name in names:
            schedules.wait_until_advanced(name)
    assert Counter(job["tags"][0] for job in schedules.jobs()) == dict.fromkeys(names, 1)


def test_run_that_cannot_be_stored_stays_due_and_does_not_block_other_schedules(
    schedules: Schedules, db: TestDatabase, periodic_enqueuer: PeriodicEnqueuer, loop: Loop
) -> None:
    schedules.put("broken", misfire="once")
    schedules.put("sound")
    with reject_jobs_of(db, "broken"):
        schedules.age(HOUR + 2, "broken")
        schedules.age(HOUR + 1, "sound")
        before = schedules.get("broken")
        loop.run(periodic_enqueuer.run_once())
        schedules.wait_until_advanced("sound")
        assert schedules.get("broken") == before
        assert [job["schedule"] for job in schedules.jobs()] == ["sound"]
    schedules.wait_until_advanced("broken")
    assert sorted(job["schedule"] for job in schedules.jobs()) == ["broken", "sound"]


def test_failing_schedule_with_misfire_skip_skips_the_late_run(schedules: Schedules, db: TestDatabase) -> None:
    schedules.put("broken")
    with reject_jobs_of(db, "broken"):
        schedules.age(HOUR + 61, "broken")
        schedules.wait_until_advanced("broken")
    assert schedules.jobs() == []


@pytest.mark.parametrize(
    ("misfire", "hours", "seconds_late", "jobs"),
    [
        ("skip", 1, 30, 1),
        ("skip", 10, 30, 1),  # the last of them is on time
        ("skip", 10, 90, 0),
        ("once", 1, 30, 1),
        ("once", 10, 30, 1),
        ("once", 10, 90, 1),
        ("all", 1, 30, 1),
        ("all", 10, 90, 10),
        ("all", 250, 90, 250),  # more than fit into one transaction
    ],
)
def test_missed_runs_follow_the_misfire_policy(
    schedules: Schedules, misfire: str, hours: int, seconds_late: int, jobs: int
) -> None:
    schedules.put(misfire=misfire)
    schedules.age(hours * HOUR + seconds_late)
    after = schedules.wait_until_advanced()
    assert len(schedules.jobs(limit=1000)) == jobs
    assert ("last_run_at" in after, "last_job_id" in after) == (jobs > 0, jobs > 0)


def test_overlap_skip_skips_a_run_while_the_last_job_is_waiting_or_running(schedules: Schedules, api: Api) -> None:
    schedules.put(overlap="skip", misfire="all")
    schedules.age(3 * HOUR)
    first = schedules.wait_until_advanced()
    assert len(schedules.jobs()) == 1
    for claimed in (False, True):
        job = api.claim_one() if claimed else None
        schedules.age(HOUR)
        second = schedules.wait_until_advanced()
        assert (second["last_run_at"], second["last_job_id"]) == (first["last_run_at"], first["last_job_id"])
        if job:
            api.complete(job)
    schedules.age(HOUR)
    assert schedules.wait_until_advanced()["last_job_id"] != first["last_job_id"]
    assert len(schedules.jobs()) == 2


def test_overlap_allow_enqueues_a_run_while_the_last_job_is_waiting(schedules: Schedules) -> None:
    schedules.put()
    for _ in range(2):
        schedules.age(HOUR)
        schedules.wait_until_advanced()
    assert len(schedules.jobs()) == 2


def test_schedule_has_no_next_run_after_its_last_run(schedules: Schedules, db: TestDatabase) -> None:
    schedules.put(ends_at=db.instant(HOUR / 2))
    db.execute("UPDATE schedules SET next_run_at = now()")
    after = schedules.wait_until_advanced()
    assert (len(schedules.jobs()), "next_run_at" in after, after["upcoming"]) == (1, False, [])


@pytest.mark.parametrize("paused", [False, True])
def test_run_enqueues_now_and_keeps_the_next_run(schedules: Schedules, api: Api, paused: bool) -> None:
    created = schedules.put(paused=paused, overlap="skip", job={"payload": [1]})
    response = api.http.post("/schedules/s/run")
    job = response.json()
    assert (response.status_code, response.headers["location"]) == (201, f"/jobs/{job['id']}")
    assert (job["schedule"], job["payload"], job["state"]) == ("s", [1], "ready")
    after = schedules.get()
    assert (after.get("next_run_at"), after["last_job_id"]) == (created.get("next_run_at"), job["id"])
    assert schedules.post("run", status=201)["id"] != job["id"]


def test_run_undeletes_a_queue_that_was_deleted_in_the_meantime(
    schedules: Schedules, api: Api, db: TestDatabase, background: Background, eventually: Callable[..., Any]
) -> None:
    api.configure()
    schedules.put()
    with db.uncommitted("SELECT FROM schedules FOR UPDATE"):
        run = background.submit(api.http.post, "/schedules/s/run")
        eventually(lambda: db.value(LOCK_WAITS_ON_SCHEDULES))
        api.delete(f"/queues/{api.queue}")
    assert run.result().status_code == 201, run.result().text
    assert len(schedules.jobs()) == 1
    api.get(f"/queues/{api.queue}")


def test_run_wakes_a_waiting_poll(
    schedules: Schedules, api: Api, background: Any, eventually: Callable[..., Any]
) -> None:
    schedules.put()
    poll = background.submit(api.claim, wait_seconds=30)
    eventually(lambda: api.get("/stats")["waiting_polls"] == 1)
    job = schedules.post("run", status=201)
    assert [claimed["id"] for claimed in poll.result()["jobs"]] == [job["id"]]


def test_run_with_a_used_unique_key_returns_the_existing_job(schedules: Schedules, api: Api) -> None:
    schedules.put(job={"unique": {"key": "k"}}, misfire="all")
    first = schedules.post("run", status=201)
    second = api.http.post("/schedules/s/run")
    assert (second.status_code, second.headers["job-duplicate"], second.json()["id"]) == (200, "true", first["id"])
    schedules.age(5 * HOUR)
    assert schedules.wait_until_advanced()["last_job_id"] == first["id"]
    assert len(schedules.jobs()) == 1


def test_run_with_a_used_unique_key_and_reject_is_skipped(schedules: Schedules, api: Api) -> None:
    schedules.put(job={"unique": {"key": "k", "on_duplicate": "reject"}})
    first = schedules.post("run", status=201)
    assert schedules.post("run", status=409)["existing_job_id"] == first["id"]
    schedules.age(HOUR)
    schedules.wait_until_advanced()
    assert len(schedules.jobs()) == 1
    api.complete(api.claim_one())
    schedules.age(HOUR)
    assert schedules.wait_until_advanced()["last_job_id"] != first["id"]


def test_run_into_a_full_queue_stays_due(
    schedules: Schedules, api: Api, periodic_enqueuer: PeriodicEnqueuer, loop: Loop
) -> None:
    schedules.send("PUT", f"/queues/{api.queue}", {"max_waiting": 1}, status=200)
    schedules.put()
    schedules.post("run", status=201)
    assert schedules.post("run", status=429)["code"] == "queue_full"
    schedules.age(HOUR)
    due = schedules.get()
    loop.run(periodic_enqueuer.run_once())
    assert schedules.get() == due
    api.claim_one()
    schedules.wait_until_advanced()
    assert len(schedules.jobs()) == 2


def test_schedule_fires_even_if_a_new_schema_rejects_its_payload(schedules: Schedules, api: Api) -> None:
    strict_type = f"{api.queue}-strict"
    schedules.send("PUT", f"/job-types/{strict_type}", {"payload_schema": {"type": "object"}}, status=200)
    problem = schedules.put(job={"job_type": strict_type, "payload": 1}, status=422)
    assert problem["errors"][0]["pointer"].startswith("/job/payload")
    schedules.put(job={"job_type": strict_type, "payload": {}})
    schedules.send("PUT", f"/job-types/{strict_type}", {"payload_schema": {"type": "array"}}, status=200)
    schedules.age(HOUR)
    schedules.wait_until_advanced()
    assert len(schedules.jobs()) == 1
