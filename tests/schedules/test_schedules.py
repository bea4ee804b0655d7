"""PUT, GET, DELETE /schedules/{name}, GET /schedules, POST /schedules/{name}/pause | resume, POST /schedules/preview."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.api import Api, Json, when
from tests.database import TestDatabase
from tests.schedules.conftest import HOUR, Schedules, refused


def upcoming(schedule: Json) -> list[datetime]:
    return [when(run) for run in schedule["upcoming"]]


def test_a_schedule_is_told_as_it_was_put(schedules: Schedules, api: Api) -> None:
    job = {"payload": {"n": 1, "big": 12345678901234567890}, "priority": 3, "tags": ["nightly"]}
    made = schedules.put("report", cron="30 1 * * *", timezone="Europe/Berlin", job=job, misfire="once", overlap="skip")
    assert made == schedules.get("report")
    assert made["job"] == {"queue": api.queue, "job_type": "test", **job}
    told = [made[name] for name in ("name", "cron", "timezone", "misfire", "overlap", "paused")]
    assert told == ["report", "30 1 * * *", "Europe/Berlin", "once", "skip", False]
    assert made.keys().isdisjoint({"every_seconds", "last_run_at", "last_job_id", "starts_at", "ends_at"})
    assert len(made["upcoming"]) == 5
    assert made["upcoming"][0] == made["next_run_at"]


def test_a_schedule_has_defaults(schedules: Schedules) -> None:
    made = schedules.put(every_seconds=60)
    assert (made["timezone"], made["misfire"], made["overlap"], made["paused"]) == ("UTC", "skip", "allow", False)


def test_every_so_many_seconds_counts_from_when_the_schedule_was_made(schedules: Schedules) -> None:
    made = schedules.put(every_seconds=90)
    first = when(made["created_at"])
    assert upcoming(made) == [first + timedelta(seconds=90 * n) for n in range(1, 6)]


def test_every_so_many_seconds_counts_from_its_start(schedules: Schedules, db: TestDatabase) -> None:
    starts_at = db.instant(-1000)
    runs = upcoming(schedules.put(every_seconds=90, starts_at=starts_at))
    assert {(run - when(starts_at)) % timedelta(seconds=90) for run in runs} == {timedelta(0)}
    assert timedelta(0) < runs[0] - when(db.instant(0)) <= timedelta(seconds=90)


def test_no_run_comes_before_the_start(schedules: Schedules, db: TestDatabase) -> None:
    starts_at = db.instant(10 * HOUR)
    assert upcoming(schedules.put(every_seconds=90, starts_at=starts_at))[0] == when(starts_at)
    assert all(run >= when(starts_at) for run in upcoming(schedules.put(cron="* * * * *", starts_at=starts_at)))


def test_no_run_comes_at_the_end_or_after_it(schedules: Schedules, db: TestDatabase) -> None:
    starts_at, ends_at = db.instant(100), db.instant(100 + 3 * HOUR)
    runs = upcoming(schedules.put(every_seconds=HOUR, starts_at=starts_at, ends_at=ends_at))
    assert runs == [when(starts_at) + timedelta(hours=n) for n in range(len(runs))]
    assert len(runs) in (3, 4)  # the clock went on between the two instants
    exact = (when(starts_at) + timedelta(hours=3)).isoformat()
    assert len(schedules.put(every_seconds=HOUR, starts_at=starts_at, ends_at=exact)["upcoming"]) == 3


def test_a_schedule_that_has_ended_has_no_next_run(schedules: Schedules, db: TestDatabase) -> None:
    ended = schedules.put(ends_at=db.instant(-1))
    assert ("next_run_at" in ended, ended["upcoming"]) == (False, [])


def test_instants_are_told_in_utc(schedules: Schedules) -> None:
    made = schedules.put(starts_at="2026-01-01T02:00:00+02:00", ends_at="9999-12-30T23:59:59Z")
    assert (made["starts_at"], made["ends_at"]) == ("2026-01-01T00:00:00Z", "9999-12-30T23:59:59Z")


def test_putting_the_same_again_changes_nothing(schedules: Schedules) -> None:
    made = schedules.put(every_seconds=90)
    schedules.post("run", status=201)
    ran = schedules.get()
    again = schedules.put(every_seconds=90)
    kept = ("next_run_at", "last_run_at", "last_job_id", "created_at", "upcoming")
    assert [again[name] for name in kept] == [ran[name] for name in kept]
    assert again["next_run_at"] == made["next_run_at"]


def test_another_job_changes_nothing_about_the_times(schedules: Schedules) -> None:
    made = schedules.put(cron="0 0 1 * *")
    changed = schedules.put(cron="0 0 1 * *", job={"payload": 2}, misfire="all")
    assert (changed["next_run_at"], changed["job"]["payload"], changed["misfire"]) == (made["next_run_at"], 2, "all")


def test_a_run_that_is_due_stays_due_when_the_same_is_put(schedules: Schedules, db: TestDatabase) -> None:
    schedules.put(misfire="once")
    with refused(db, "s"):  # or it would be fired at once
        schedules.age(2 * HOUR)
        due = schedules.get()["next_run_at"]
        assert schedules.put(misfire="once")["next_run_at"] == due
    schedules.gone_on()
    assert len(schedules.jobs()) == 1


@pytest.mark.parametrize(
    "times", [{"every_seconds": 60}, {"cron": "@hourly"}, {"every_seconds": HOUR, "starts_at": "2026-01-01T00:00:00Z"}]
)
def test_new_times_count_from_now(schedules: Schedules, db: TestDatabase, times: Json) -> None:
    made = schedules.put(cron="0 0 1 1 *")
    changed = schedules.put(**times)
    assert timedelta(0) < when(changed["next_run_at"]) - when(db.instant(0)) <= timedelta(hours=1)
    assert changed["created_at"] == made["created_at"]
    assert when(changed["updated_at"]) > when(made["updated_at"])


def test_a_paused_schedule_has_no_next_run(schedules: Schedules) -> None:
    schedules.put()
    paused = schedules.post("pause")
    assert (paused["paused"], "next_run_at" in paused, paused["upcoming"]) == (True, False, [])
    assert schedules.post("pause")["paused"] is True


def test_a_resumed_schedule_counts_from_now_and_makes_up_for_nothing(schedules: Schedules, db: TestDatabase) -> None:
    schedules.put(misfire="all")
    schedules.post("pause")
    schedules.age(10 * HOUR + 1)
    resumed = schedules.post("resume")
    assert (resumed["paused"], when(resumed["next_run_at"]) > when(db.instant(0))) == (False, True)
    assert schedules.jobs() == []


def test_resuming_what_is_not_paused_changes_nothing(schedules: Schedules) -> None:
    made = schedules.put()
    assert schedules.post("resume")["next_run_at"] == made["next_run_at"]


def test_a_schedule_can_be_put_paused_and_stays_so_until_it_is_said_otherwise(schedules: Schedules) -> None:
    assert "next_run_at" not in schedules.put(paused=True)
    assert schedules.put(every_seconds=90)["paused"] is True
    assert "next_run_at" in schedules.put(every_seconds=90, paused=False)


def test_a_deleted_schedule_is_told_a_last_time_and_its_jobs_stay(schedules: Schedules) -> None:
    schedules.put()
    job = schedules.post("run", status=201)
    seen = schedules.get()
    assert schedules.delete() == seen
    assert schedules.delete(status=404)["code"] == "not_found"
    assert [found["id"] for found in schedules.jobs()] == [job["id"]]


def test_schedules_come_in_pages_in_the_order_of_their_names(schedules: Schedules, api: Api) -> None:
    names = [f"s{n}" for n in range(7)]
    for name in reversed(names):
        schedules.put(name)
    pages = api.pages("/schedules", limit=3)
    assert [[schedule["name"] for schedule in page] for page in pages] == [names[:3], names[3:6], names[6:]]
    assert pages[0][0] == schedules.get("s0")


def test_there_may_be_no_schedules(schedules: Schedules, api: Api) -> None:
    assert api.get("/schedules") == {"items": []}


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 1001), ("cursor", "x"), ("colour", "red")])
def test_a_bad_parameter_is_pointed_at(api: Api, name: str, value: Any) -> None:
    assert api.get("/schedules", **{name: value}, status=422)["errors"][0]["pointer"] == f"/query/{name}"


@pytest.mark.parametrize("verb", ["run", "pause", "resume"])
def test_what_is_not_there_cannot_be_told_anything(schedules: Schedules, api: Api, verb: str) -> None:
    assert schedules.post(verb, "nobody", status=404)["code"] == "not_found"
    assert api.get("/schedules/nobody", status=404)["code"] == "not_found"
    assert schedules.post(verb, "a b", status=422)["errors"][0]["pointer"] == "/path/name"


@pytest.mark.parametrize(
    ("pointer", "fields"),
    [
        ("/cron", {}),
        ("/every_seconds", {"cron": "@daily", "every_seconds": 60}),
        ("/every_seconds", {"every_seconds": 0}),
        ("/every_seconds", {"every_seconds": 1.5}),
        ("/cron", {"cron": ""}),
        ("/cron", {"cron": "* * * *"}),
        ("/cron", {"cron": "0 0 30 2 *"}),
        ("/cron", {"cron": "1" * 201}),
        ("/cron", {"cron": None}),
        ("/timezone", {"cron": "@daily", "timezone": "Mars/Olympus"}),
        ("/timezone", {"every_seconds": 60, "timezone": "europe/berlin"}),
        ("/misfire", {"cron": "@daily", "misfire": "sometimes"}),
        ("/overlap", {"cron": "@daily", "overlap": "never"}),
        ("/starts_at", {"cron": "@daily", "starts_at": "2026-01-01"}),
        ("/starts_at", {"cron": "@daily", "starts_at": "2126-01-01T00:00:00Z"}),
        ("/starts_at", {"cron": "@daily", "starts_at": "0001-01-01T00:00:00+05:00"}),
        ("/ends_at", {"cron": "@daily", "ends_at": "9999-12-31T23:59:59-05:00"}),
        ("/ends_at", {"cron": "@daily", "starts_at": "2026-01-01T00:00:00Z", "ends_at": "2026-01-01T01:00:00+01:00"}),
        ("/crom", {"crom": "@daily"}),
        ("/job/queue", {"cron": "@daily", "job": {"queue": "a b"}}),
        ("/job/payloat", {"cron": "@daily", "job": {"payloat": 1}}),
        ("/job/lease_seconds", {"cron": "@daily", "job": {"lease_seconds": 0}}),
        ("/job/metadata", {"cron": "@daily", "job": {"metadata": {"x": "y" * 17_000}}}),
        ("/job/run_at", {"cron": "@daily", "job": {"run_at": "2026-01-01T00:00:00Z"}}),
        ("/job/delay_seconds", {"cron": "@daily", "job": {"delay_seconds": 0}}),
        ("/job/expires_at", {"cron": "@daily", "job": {"expires_at": "2026-01-01T00:00:00Z"}}),
        ("/job/depends_on", {"cron": "@daily", "job": {"depends_on": []}}),
        ("/job/on_parent_failure", {"cron": "@daily", "job": {"on_parent_failure": "run"}}),
    ],
)
def test_what_is_wrong_with_a_schedule_is_pointed_at(
    schedules: Schedules, api: Api, pointer: str, fields: Json
) -> None:
    body = schedules.body(**fields)
    assert schedules.send("PUT", "/schedules/s", body, status=422)["errors"][0]["pointer"] == pointer
    assert api.get("/schedules") == {"items": []}


def test_a_schedule_needs_a_job(schedules: Schedules) -> None:
    assert schedules.send("PUT", "/schedules/s", {"cron": "@daily"}, status=422)["errors"][0]["pointer"] == "/job"


def test_a_payload_that_is_too_large_is_refused(schedules: Schedules) -> None:
    problem = schedules.put(job={"payload": "x" * 300_000}, status=413)
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("payload_too_large", "/job/payload")


def test_a_preview_tells_the_next_five_runs(api: Api, schedules: Schedules, db: TestDatabase) -> None:
    runs = [
        when(run)
        for run in api.post("/schedules/preview", {"cron": "*/10 * * * *", "timezone": "Asia/Kolkata"})["runs"]
    ]
    assert timedelta(0) < runs[0] - when(db.instant(0)) <= timedelta(minutes=10)
    assert [later - run for run, later in pairwise(runs)] == [timedelta(minutes=10)] * 4
    every = [when(run) for run in api.post("/schedules/preview", {"every_seconds": 7})["runs"]]
    assert [later - run for run, later in pairwise(every)] == [timedelta(seconds=7)] * 4
    assert api.get("/schedules") == {"items": []}


@pytest.mark.parametrize(
    ("pointer", "body"),
    [
        ("/cron", {}),
        ("/cron", {"cron": "0 0 31 2 *"}),
        ("/every_seconds", {"cron": "@daily", "every_seconds": 1}),
        ("/timezone", {"cron": "@daily", "timezone": "localtime"}),
        ("/job", {"cron": "@daily", "job": {"job_type": "test"}}),
    ],
)
def test_a_bad_preview_is_pointed_at(api: Api, pointer: str, body: Json) -> None:
    assert api.post("/schedules/preview", body, status=422)["errors"][0]["pointer"] == pointer
