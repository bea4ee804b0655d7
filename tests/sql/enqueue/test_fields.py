"""SQL enqueue stores the same job as HTTP: the same fields, defaults and states."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.api_client import Api, Json, parse_time
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session, without_times
from tests.table import table

HOUR = timedelta(hours=1)
RENAMED = {"group_key": "group"}
AS_JSON = ("payload", "metadata", "retry")
COLUMNS = """
SELECT state, state_reason, priority, max_attempts, lease_seconds, timeout_seconds, retry, tags, metadata, unique_key,
    group_key, traceparent, tracestate, expires_at, on_parent_failure, admission, has_dependents
FROM jobs
WHERE id = $1
"""
POLICIES = {"base_seconds": 1, "factor": 3}, {"factor": 4, "max_seconds": 9}, {"max_seconds": 8.5, "jitter": 0.25}


def enqueue_both_ways(shop: Session, api: Api, **fields: Any) -> tuple[str, str]:
    """Enqueues the same job by SQL and over HTTP."""
    parameters = {name: json.dumps(value) if name in AS_JSON else value for name, value in fields.items()}
    by_http = api.enqueue(**{RENAMED.get(name, name): value for name, value in fields.items()})
    return shop.enqueue(**parameters), by_http["id"]


def stored_row(db: TestDatabase, job_id: str) -> Json:
    """The stored columns, with JSON decoded, so that 60 equals 60.0."""
    found = dict(db.row(COLUMNS, job_id))
    return found | {name: json.loads(found[name]) for name in ("retry", "tags", "metadata") if found[name] is not None}


@table(
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
)
def test_sql_and_http_store_the_same_job(shop: Session, api: Api, db: TestDatabase, fields: Json) -> None:
    by_sql, by_http = enqueue_both_ways(shop, api, **fields)
    assert without_times(api.job(by_sql)) == without_times(api.job(by_http))
    assert stored_row(db, by_sql) == stored_row(db, by_http)


def test_sql_enqueue_requires_only_the_job_type(shop: Session, api: Api) -> None:
    job = api.job(str(shop.value("SELECT longshore_enqueue_v1('bare')")))
    assert (job["queue"], job["payload"], job["priority"], job["tags"], job["metadata"]) == ("default", {}, 0, [], {})
    assert job["run_at"] == job["created_at"]


def test_null_parameters_of_sql_enqueue_mean_absent(shop: Session, api: Api) -> None:
    names = shop.value("SELECT proargnames FROM pg_proc WHERE proname = 'longshore_enqueue_v1'")
    assert len(names) == 21
    job_id = shop.enqueue(**dict.fromkeys(names[1:]))
    assert without_times(api.job(job_id)) == without_times(api.enqueue(queue="default"))


def test_sql_enqueue_stores_the_payload_as_written(shop: Session, db: TestDatabase) -> None:
    payload = ' {"z": 1.50, "a": 12345678901234567890,\n "e": 1E5, "u": "\\u00fc"} '
    assert db.value("SELECT payload FROM jobs WHERE id = $1", shop.enqueue(payload=payload)) == payload


def test_trace_of_sql_enqueue_is_delivered_with_the_job(shop: Session, api: Api) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    shop.enqueue(traceparent=trace, tracestate="a=1")
    claimed = api.claim_one()
    assert (claimed["traceparent"], claimed["tracestate"]) == (trace, "a=1")


def test_sql_enqueue_with_future_run_at_is_scheduled(shop: Session, api: Api, db: TestDatabase) -> None:
    at = parse_time(db.instant(60))
    job = api.job(shop.enqueue(run_at=at))
    assert (job["state"], parse_time(job["run_at"])) == ("scheduled", at)
    assert api.claim()["jobs"] == []


def test_sql_enqueue_with_past_run_at_is_ready(shop: Session, api: Api, db: TestDatabase) -> None:
    at = parse_time(db.instant(-60))
    job_id = shop.enqueue(run_at=at)
    assert (api.job(job_id)["state"], parse_time(api.job(job_id)["run_at"])) == ("ready", at)
    assert api.claim_one()["id"] == job_id


def test_delay_of_sql_enqueue_counts_from_now(shop: Session, api: Api, db: TestDatabase) -> None:
    before = parse_time(db.instant(3600))
    job = api.job(shop.enqueue(delay_seconds=3600))
    assert before <= parse_time(job["run_at"]) <= parse_time(db.instant(3600))


def test_delay_in_a_long_transaction_counts_from_the_call(shop: Session, api: Api, db: TestDatabase) -> None:
    with shop.transaction():
        shop.value("SELECT now()")
        later = parse_time(db.instant(0))
        job_id = shop.enqueue(delay_seconds=3600)
    job = api.job(job_id)
    assert parse_time(job["run_at"]) >= later + HOUR
    assert parse_time(job["created_at"]) >= later - timedelta(milliseconds=1)


def test_sql_job_that_misses_its_start_deadline_is_dead(shop: Session, api: Api, db: TestDatabase) -> None:
    job = api.job(shop.enqueue(delay_seconds=60, expires_at=parse_time(db.instant(-1))), wait_seconds=20)
    assert (job["state"], job["state_reason"]) == ("dead", "expired")


@pytest.mark.parametrize(
    "values",
    [{}, {"priority": 7, "max_attempts": 2, "lease_seconds": 5, "timeout_seconds": 6}],
    ids=["defaults", "own values"],
)
def test_sql_enqueue_takes_defaults_from_job_type_then_queue(
    shop: Session, api: Api, db: TestDatabase, values: Json
) -> None:
    queue_retry, type_retry, job_retry = POLICIES
    api.configure(default_priority=3, default_max_attempts=9, default_lease_seconds=90, default_retry=queue_retry)
    api.put(
        f"/job-types/{api.queue}", {"max_attempts": 8, "lease_seconds": 80, "timeout_seconds": 800, "retry": type_retry}
    )
    for job_type in ("test", api.queue):
        for fields in (values, values | {"retry": job_retry}):
            by_sql, by_http = enqueue_both_ways(shop, api, job_type=job_type, **fields)
            assert stored_row(db, by_sql) == stored_row(db, by_http)
    assert stored_row(db, by_sql)["retry"] == queue_retry | type_retry | job_retry


@pytest.mark.parametrize(
    "config", [{"retry": {"max_attempts": 7}}, {"retry": {"max_attempts": 7}, "max_attempts": 6}], ids=str
)
def test_sql_enqueue_takes_max_attempts_from_the_retry_policy_of_the_job_type(
    shop: Session, api: Api, db: TestDatabase, config: Json
) -> None:
    api.put(f"/job-types/{api.queue}", config)
    by_sql, by_http = enqueue_both_ways(shop, api, job_type=api.queue)
    assert stored_row(db, by_sql) == stored_row(db, by_http)
    assert stored_row(db, by_sql)["retry"] is None


def test_sql_enqueue_does_not_apply_the_payload_schema(shop: Session, api: Api) -> None:
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
def test_session_settings_do_not_affect_sql_enqueue(shop: Session, api: Api, db: TestDatabase, setting: str) -> None:
    shop.execute(f"SET {setting}")
    fields = {
        "payload": {"a\\b": 'c"d'},
        "delay_seconds": 3600,
        "group_key": "g",
        "retry": {"factor": 1.1},
        "tags": ["a\\"],
    }
    by_sql, by_http = enqueue_both_ways(shop, api, **fields)
    assert stored_row(db, by_sql) == stored_row(db, by_http)
    assert abs(parse_time(api.job(by_sql)["run_at"]) - parse_time(api.job(by_http)["run_at"])) < HOUR
