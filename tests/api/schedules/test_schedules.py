"""PUT, GET, DELETE /schedules/{name}, GET /schedules, POST /schedules/{name}/pause | resume, POST
/schedules/preview.
"""

from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.api.schedules.conftest import HOUR, Schedules, reject_jobs_of
from tests.api_client import Api, Json, parse_time
from tests.database import TestDatabase
from tests.table import table


def upcoming(schedule: Json) -> list[datetime]:
    return [parse_time(run) for run in schedule["upcoming"]]


def test_put_and_get_return_the_schedule(schedules: Schedules, api: Api) -> None:
    job = {"payload": {"n": 1, "big": 12345678901234567890}, "priority": 3, "tags": ["nightly"]}
    created = schedules.put(
        "report", cron="30 1 * * *", timezone="Europe/Berlin", job=job, misfire="once", overlap="skip"
    )
    assert created == schedules.get("report")
    assert created["job"] == {"queue": api.queue, "job_type": "test", **job}
    values = [created[name] for name in ("name", "cron", "timezone", "misfire", "overlap", "paused")]
    assert values == ["report", "30 1 * * *", "Europe/Berlin", "once", "skip", False]
    assert created.keys().isdisjoint({"every_seconds", "last_run_at", "last_job_id", "starts_at", "ends_at"})
    assert len(created["upcoming"]) == 5
    assert created["upcoming"][0] == created["next_run_at"]


def test_a_schedule_has_defaults(schedules: Schedules) -> None:
    created = schedules.put(every_seconds=60)
    assert (created["timezone"], created["misfire"], created["overlap"], created["paused"]) == (
        "UTC",
        "skip",
        "allow",
        False,
    )


def test_interval_counts_from_the_creation_of_the_schedule(schedules: Schedules) -> None:
    created = schedules.put(every_seconds=90)
    first = parse_time(created["created_at"])
    assert upcoming(created) == [first + timedelta(seconds=90 * n) for n in range(1, 6)]


def test_interval_counts_from_starts_at(schedules: Schedules, db: TestDatabase) -> None:
    starts_at = db.instant(-1000)
    runs = upcoming(schedules.put(every_seconds=90, starts_at=starts_at))
    assert {(run - parse_time(starts_at)) % timedelta(seconds=90) for run in runs} == {timedelta(0)}
    assert timedelta(0) < runs[0] - parse_time(db.instant(0)) <= timedelta(seconds=90)


def test_no_run_is_before_starts_at(schedules: Schedules, db: TestDatabase) -> None:
    starts_at = db.instant(10 * HOUR)
    assert upcoming(schedules.put(every_seconds=90, starts_at=starts_at))[0] == parse_time(starts_at)
    assert all(run >= parse_time(starts_at) for run in upcoming(schedules.put(cron="* * * * *", starts_at=starts_at)))


def test_no_run_is_at_or_after_ends_at(schedules: Schedules, db: TestDatabase) -> None:
    starts_at, ends_at = db.instant(100), db.instant(100 + 3 * HOUR)
    runs = upcoming(schedules.put(every_seconds=HOUR, starts_at=starts_at, ends_at=ends_at))
    assert runs == [parse_time(starts_at) + timedelta(hours=n) for n in range(len(runs))]
    assert len(runs) in (3, 4)  # the clock advances between the two instants
    exact = (parse_time(starts_at) + timedelta(hours=3)).isoformat()
    assert len(schedules.put(every_seconds=HOUR, starts_at=starts_at, ends_at=exact)["upcoming"]) == 3


def test_ended_schedule_has_no_next_run(schedules: Schedules, db: TestDatabase) -> None:
    ended = schedules.put(ends_at=db.instant(-1))
    assert ("next_run_at" in ended, ended["upcoming"]) == (False, [])


def test_instants_are_returned_in_utc(schedules: Schedules) -> None:
    created = schedules.put(starts_at="2026-01-01T02:00:00+02:00", ends_at="9999-12-30T23:59:59Z")
    assert (created["starts_at"], created["ends_at"]) == ("2026-01-01T00:00:00Z", "9999-12-30T23:59:59Z")


def test_repeated_put_changes_nothing(schedules: Schedules) -> None:
    created = schedules.put(every_seconds=90)
    schedules.post("run", status=201)
    after_run = schedules.get()
    repeated = schedules.put(every_seconds=90)
    unchanged = ("next_run_at", "last_run_at", "last_job_id", "created_at", "upcoming")
    assert [repeated[name] for name in unchanged] == [after_run[name] for name in unchanged]
    assert repeated["next_run_at"] == created["next_run_at"]


def test_put_with_another_job_keeps_the_next_run(schedules: Schedules) -> None:
    created = schedules.put(cron="0 0 1 * *")
    changed = schedules.put(cron="0 0 1 * *", job={"payload": 2}, misfire="all")
    assert (changed["next_run_at"], changed["job"]["payload"], changed["misfire"]) == (created["next_run_at"], 2, "all")


def test_repeated_put_keeps_a_due_run(schedules: Schedules, db: TestDatabase) -> None:
    schedules.put(misfire="once")
    with reject_jobs_of(db, "s"):  # otherwise it would fire at once
        schedules.age(2 * HOUR)
        due = schedules.get()["next_run_at"]
        assert schedules.put(misfire="once")["next_run_at"] == due
    schedules.wait_until_advanced()
    assert len(schedules.jobs()) == 1


@pytest.mark.parametrize(
    "times", [{"every_seconds": 60}, {"cron": "@hourly"}, {"every_seconds": HOUR, "starts_at": "2026-01-01T00:00:00Z"}]
)
def test_put_with_new_times_takes_effect_from_now(schedules: Schedules, db: TestDatabase, times: Json) -> None:
    created = schedules.put(cron="0 0 1 1 *")
    changed = schedules.put(**times)
    assert timedelta(0) < parse_time(changed["next_run_at"]) - parse_time(db.instant(0)) <= timedelta(hours=1)
    assert changed["created_at"] == created["created_at"]
    assert parse_time(changed["updated_at"]) > parse_time(created["updated_at"])


def test_paused_schedule_has_no_next_run(schedules: Schedules) -> None:
    schedules.put()
    paused = schedules.post("pause")
    assert (paused["paused"], "next_run_at" in paused, paused["upcoming"]) == (True, False, [])
    assert schedules.post("pause")["paused"] is True


def test_resumed_schedule_continues_from_now_without_missed_runs(schedules: Schedules, db: TestDatabase) -> None:
    schedules.put(misfire="all")
    schedules.post("pause")
    schedules.age(10 * HOUR + 1)
    resumed = schedules.post("resume")
    assert (resumed["paused"], parse_time(resumed["next_run_at"]) > parse_time(db.instant(0))) == (False, True)
    assert schedules.jobs() == []


def test_resume_of_an_active_schedule_changes_nothing(schedules: Schedules) -> None:
    created = schedules.put()
    assert schedules.post("resume")["next_run_at"] == created["next_run_at"]


def test_put_can_pause_a_schedule_and_keeps_the_pause_by_default(schedules: Schedules) -> None:
    assert "next_run_at" not in schedules.put(paused=True)
    assert schedules.put(every_seconds=90)["paused"] is True
    assert "next_run_at" in schedules.put(every_seconds=90, paused=False)


def test_put_of_an_older_copy_resumes_a_paused_schedule_unless_it_omits_paused(schedules: Schedules, api: Api) -> None:
    copy = schedules.put()
    schedules.post("pause")
    edited = {name: copy[name] for name in ("cron", "every_seconds", "timezone", "job") if name in copy}
    assert api.put(f"/schedules/{copy['name']}", {**edited, "misfire": "once"})["paused"] is True
    assert api.put(f"/schedules/{copy['name']}", copy)["paused"] is False


def test_delete_returns_the_last_state_and_keeps_the_jobs(schedules: Schedules) -> None:
    schedules.put()
    job = schedules.post("run", status=201)
    last_state = schedules.get()
    assert schedules.delete() == last_state
    assert schedules.delete(status=404)["code"] == "not_found"
    assert [item["id"] for item in schedules.jobs()] == [job["id"]]


def test_list_returns_schedules_sorted_by_name_in_pages(schedules: Schedules, api: Api) -> None:
    names = [f"s{n}" for n in range(7)]
    for name in reversed(names):
        schedules.put(name)
    pages = api.pages("/schedules", limit=3)
    assert [[schedule["name"] for schedule in page] for page in pages] == [names[:3], names[3:6], names[6:]]
    assert pages[0][0] == schedules.get("s0")


def test_list_without_schedules_is_empty(schedules: Schedules, api: Api) -> None:
    assert api.get("/schedules") == {"items": []}


@pytest.mark.parametrize("verb", ["run", "pause", "resume"])
def test_operations_on_an_unknown_schedule_are_not_found(schedules: Schedules, api: Api, verb: str) -> None:
    assert schedules.post(verb, "missing", status=404)["code"] == "not_found"
    assert api.get("/schedules/missing", status=404)["code"] == "not_found"
    assert schedules.post(verb, "a b", status=422)["errors"][0]["pointer"] == "/path/name"


@table(
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
def test_invalid_schedule_is_rejected_with_a_pointer(
    schedules: Schedules, api: Api, pointer: str, fields: Json
) -> None:
    body = schedules.body(**fields)
    assert schedules.send("PUT", "/schedules/s", body, status=422)["errors"][0]["pointer"] == pointer
    assert api.get("/schedules") == {"items": []}


def test_schedule_without_a_job_is_rejected(schedules: Schedules) -> None:
    assert schedules.send("PUT", "/schedules/s", {"cron": "@daily"}, status=422)["errors"][0]["pointer"] == "/job"


def test_schedule_with_a_too_large_payload_is_rejected(schedules: Schedules) -> None:
    problem = schedules.put(job={"payload": "x" * 300_000}, status=413)
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("payload_too_large", "/job/payload")


def test_preview_returns_the_next_five_runs(api: Api, schedules: Schedules, db: TestDatabase) -> None:
    runs = [
        parse_time(run)
        for run in api.post("/schedules/preview", {"cron": "*/10 * * * *", "timezone": "Asia/Kolkata"})["runs"]
    ]
    assert timedelta(0) < runs[0] - parse_time(db.instant(0)) <= timedelta(minutes=10)
    assert [later - run for run, later in pairwise(runs)] == [timedelta(minutes=10)] * 4
    interval_runs = [parse_time(run) for run in api.post("/schedules/preview", {"every_seconds": 7})["runs"]]
    assert [later - run for run, later in pairwise(interval_runs)] == [timedelta(seconds=7)] * 4
    assert api.get("/schedules") == {"items": []}


@table(
    ("pointer", "body"),
    [
        ("/cron", {}),
        ("/cron", {"cron": "0 0 31 2 *"}),
        ("/every_seconds", {"cron": "@daily", "every_seconds": 1}),
        ("/timezone", {"cron": "@daily", "timezone": "localtime"}),
        ("/job", {"cron": "@daily", "job": {"job_type": "test"}}),
    ],
)
def test_invalid_preview_is_rejected_with_a_pointer(api: Api, pointer: str, body: Json) -> None:
    assert api.post("/schedules/preview", body, status=422)["errors"][0]["pointer"] == pointer
