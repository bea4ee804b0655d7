"""A job that came by SQL is the job that would have come over HTTP: the same fields, the same defaults, the same states."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.api import Api, Json, when
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Session, without_times

HOUR = timedelta(hours=1)
RENAMED = {"group_key": "group"}
AS_JSON = ("payload", "metadata", "retry")
COLUMNS = """
SELECT state, state_reason, priority, max_attempts, lease_seconds, timeout_seconds, retry, tags, metadata, unique_key,
    group_key, traceparent, tracestate, expires_at, on_parent_failure, turn, awaited
FROM jobs
WHERE id = $1
"""
POLICIES = {"base_seconds": 1, "factor": 3}, {"factor": 4, "max_seconds": 9}, {"max_seconds": 8.5, "jitter": 0.25}


def both(shop: Session, api: Api, **fields: Any) -> tuple[str, str]:
    """The same job by SQL and over HTTP."""
    own = {name: json.dumps(value) if name in AS_JSON else value for name, value in fields.items()}
    by_http = api.enqueue(**{RENAMED.get(name, name): value for name, value in fields.items()})
    return shop.enqueue(**own), by_http["id"]


def row(db: TestDatabase, job_id: str) -> Json:
    """As it is stored; but 60 and 60.0 are one number."""
    found = dict(db.row(COLUMNS, job_id))
    return found | {name: json.loads(found[name]) for name in ("retry", "tags", "metadata") if found[name] is not None}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"payload": {"to": "ada", "n": [1, 2.50, None]}},
        {"payload": None},
        {"priority": -32768, "max_attempts": 1000, "lease_seconds": 86400, "timeout_seconds": 2592000},
        {"priority": 32767, "max_attempts": 1, "lease_seconds": 1, "timeout_seconds": 1},
        {"tags": ["a", 'b"c', "ü" * 120], "metadata": {"tenant": "acme", "nested": {"n": [1]}}},
        {"tags": [], "metadata": {}, "retry": {}, "depends_on": []},
        {"group_key": "customer:42"},
        {"retry": {"base_seconds": 0.5, "factor": 1.5, "max_seconds": 60, "jitter": 0}},
        {"delay_seconds": 3600},
        {"delay_seconds": 0},
    ],
    ids=str,
)
def test_what_is_asked_for_alike_is_stored_alike(shop: Session, api: Api, db: TestDatabase, fields: Json) -> None:
    mine, theirs = both(shop, api, **fields)
    assert without_times(api.job(mine)) == without_times(api.job(theirs))
    assert row(db, mine) == row(db, theirs)


def test_a_job_needs_only_a_type(shop: Session, api: Api) -> None:
    job = api.job(str(shop.value("SELECT longshore_enqueue_v1('bare')")))
    assert (job["queue"], job["payload"], job["priority"], job["tags"], job["metadata"]) == ("default", {}, 0, [], {})
    assert job["run_at"] == job["created_at"]


def test_what_is_null_is_absent(shop: Session, api: Api) -> None:
    names = shop.value("SELECT proargnames FROM pg_proc WHERE proname = 'longshore_enqueue_v1'")
    assert len(names) == 21
    job_id = shop.enqueue(**dict.fromkeys(names[1:]))
    assert without_times(api.job(job_id)) == without_times(api.enqueue(queue="default"))


def test_a_payload_is_kept_as_it_was_written(shop: Session, db: TestDatabase) -> None:
    payload = ' {"z": 1.50, "a": 12345678901234567890,\n "e": 1E5, "u": "\\u00fc"} '
    assert db.value("SELECT payload FROM jobs WHERE id = $1", shop.enqueue(payload=payload)) == payload


def test_the_trace_is_handed_out_with_the_job(shop: Session, api: Api) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    shop.enqueue(traceparent=trace, tracestate="a=1")
    claimed = api.claim_one()
    assert (claimed["traceparent"], claimed["tracestate"]) == (trace, "a=1")


def test_a_job_for_later_is_scheduled(shop: Session, api: Api, db: TestDatabase) -> None:
    at = when(db.instant(60))
    job = api.job(shop.enqueue(run_at=at))
    assert (job["state"], when(job["run_at"])) == ("scheduled", at)
    assert api.claim()["jobs"] == []


def test_a_job_whose_time_has_passed_is_ready(shop: Session, api: Api, db: TestDatabase) -> None:
    at = when(db.instant(-60))
    job_id = shop.enqueue(run_at=at)
    assert (api.job(job_id)["state"], when(api.job(job_id)["run_at"])) == ("ready", at)
    assert api.claim_one()["id"] == job_id


def test_a_delay_counts_from_now(shop: Session, api: Api, db: TestDatabase) -> None:
    before = when(db.instant(3600))
    job = api.job(shop.enqueue(delay_seconds=3600))
    assert before <= when(job["run_at"]) <= when(db.instant(3600))


def test_in_a_long_transaction_now_is_the_call_and_not_the_beginning(shop: Session, api: Api, db: TestDatabase) -> None:
    with shop.transaction():
        shop.value("SELECT now()")
        later = when(db.instant(0))
        job_id = shop.enqueue(delay_seconds=3600)
    job = api.job(job_id)
    assert when(job["run_at"]) >= later + HOUR
    assert when(job["created_at"]) >= later - timedelta(milliseconds=1)


def test_a_job_that_nobody_has_begun_in_time_is_dead(shop: Session, api: Api, db: TestDatabase) -> None:
    job = api.job(shop.enqueue(delay_seconds=60, expires_at=when(db.instant(-1))), wait_seconds=20)
    assert (job["state"], job["state_reason"]) == ("dead", "expired")


@pytest.mark.parametrize(
    "own", [{}, {"priority": 7, "max_attempts": 2, "lease_seconds": 5, "timeout_seconds": 6}], ids=["theirs", "its own"]
)
def test_what_it_does_not_say_its_type_says_and_then_its_queue(
    shop: Session, api: Api, db: TestDatabase, own: Json
) -> None:
    queue_retry, type_retry, own_retry = POLICIES
    api.configure(default_priority=3, default_max_attempts=9, default_lease_seconds=90, default_retry=queue_retry)
    api.put(
        f"/job-types/{api.queue}", {"max_attempts": 8, "lease_seconds": 80, "timeout_seconds": 800, "retry": type_retry}
    )
    for job_type in ("test", api.queue):
        for fields in (own, own | {"retry": own_retry}):
            mine, theirs = both(shop, api, job_type=job_type, **fields)
            assert row(db, mine) == row(db, theirs)
    assert row(db, mine)["retry"] == queue_retry | type_retry | own_retry


@pytest.mark.parametrize(
    "config", [{"retry": {"max_attempts": 7}}, {"retry": {"max_attempts": 7}, "max_attempts": 6}], ids=str
)
def test_a_type_may_say_in_its_retry_how_often(shop: Session, api: Api, db: TestDatabase, config: Json) -> None:
    api.put(f"/job-types/{api.queue}", config)
    mine, theirs = both(shop, api, job_type=api.queue)
    assert row(db, mine) == row(db, theirs)
    assert row(db, mine)["retry"] is None


def test_the_schema_of_a_type_is_not_applied(shop: Session, api: Api) -> None:
    api.put(f"/job-types/{api.queue}", {"payload_schema": {"type": "object", "required": ["to"]}})
    api.post("/jobs", {"queue": api.queue, "job_type": api.queue}, status=422)
    assert api.job(shop.enqueue(job_type=api.queue))["payload"] == {}


@pytest.mark.parametrize(
    "setting",
    [
        "standard_conforming_strings = off",
        "timezone = 'Asia/Kolkata'",
        "datestyle = 'German, DMY'",
        "bytea_output = 'escape'",
        "extra_float_digits = -15",
        "transform_null_equals = on",
        "intervalstyle = 'sql_standard'",
    ],
)
def test_how_the_session_is_set_changes_nothing(shop: Session, api: Api, db: TestDatabase, setting: str) -> None:
    shop.execute(f"SET {setting}")
    fields = {
        "payload": {"a\\b": 'c"d'},
        "delay_seconds": 3600,
        "group_key": "g",
        "retry": {"factor": 1.1},
        "tags": ["a\\"],
    }
    mine, theirs = both(shop, api, **fields)
    assert row(db, mine) == row(db, theirs)
    assert abs(when(api.job(mine)["run_at"]) - when(api.job(theirs)["run_at"])) < HOUR
