"""The broker checks and stores the jobs of a batch column by column, as it does with single jobs."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.table import every_case, table

TOO_LATE = "2090-01-01T12:00:00+02:00"
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).astimezone(timezone(timedelta(hours=2))).isoformat()
VARIANTS: list[Json] = [
    {},
    {"priority": 7},
    {"max_attempts": 2},
    {"lease_seconds": 60},
    {"timeout_seconds": 30},
    {"retry": {"base_seconds": 3}},
    {"payload": {"text": "ü", "number": 1.50}},
    {"tags": ["ä", "b"]},
    {"metadata": {"number": 1.50}},
    {"group": "g"},
    {"expires_at": TOMORROW},
    {"delay_seconds": 60},
    {"run_at": "2020-01-01T00:00:00Z"},
    {"run_at": TOMORROW},
    {"job_type": "configured"},
    {"job_type": "configured", "priority": 1, "retry": {"jitter": 0.5}},
]
DECISIONS: list[Json] = [{"unique": {"key": "k"}}, {"ref": "a"}]
ROWS = """
SELECT (to_jsonb(jobs) - '{id,lane,run_at,due_at}'::text[])::text AS fields, run_at > now() AS is_later
FROM jobs
WHERE lane >> 8 = (SELECT id FROM queues WHERE name = $1)
ORDER BY id
"""
FAULTS: dict[str, Json] = {
    "job_type": {"job_type": ".."},
    "queue": {"queue": "a b"},
    "group": {"group": "x" * 121},
    "name in depends_on": {"depends_on": ["a b"]},
    "line break in a name": {"group": "a\n"},
    "run_at": {"run_at": TOO_LATE},
    "delay_seconds": {"delay_seconds": 2**31 - 1},
    "lease_seconds": {"lease_seconds": 10**6},
    "metadata": {"metadata": {"text": "x" * 16_384}},
    "expires_at": {"expires_at": TOO_LATE},
    "unique": {"unique": {"key": "k", "for_seconds": 2**31 - 1}},
    "run_at and delay_seconds": {"run_at": "2020-01-01T00:00:00Z", "delay_seconds": 1},
    "on_parent_failure": {"on_parent_failure": "run"},
    "payload": {"payload": [0] * 10_000},
    "payload schema": {"job_type": "strict", "payload": 3},
}


def rows(db: TestDatabase, queue: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in db.rows(ROWS, queue)]


def test_batch_stores_the_same_rows_as_single_enqueues(api: Api, db: TestDatabase) -> None:
    config = {"max_attempts": 9, "retry": {"factor": 3.0}, "lease_seconds": 77, "timeout_seconds": 99}
    api.put("/job-types/configured", config)
    batches = [VARIANTS, [*VARIANTS, *DECISIONS], VARIANTS[::-1], *([job, job] for job in VARIANTS)]
    with every_case() as case:
        for number, jobs in enumerate(batches):
            single, batch = f"{api.queue}-single-{number}", f"{api.queue}-batch-{number}"
            for queue in (single, batch):
                api.put(f"/queues/{queue}", {"default_priority": 3, "default_retry": {"base_seconds": 5}})
            for job in jobs:
                api.enqueue(**{name: value for name, value in job.items() if name != "ref"}, queue=single)
            api.batch(*[{**job, "queue": batch} for job in jobs])
            with case(jobs):
                assert rows(db, batch) == rows(db, single)


@table(("name", "job"), FAULTS.items())
def test_fault_of_a_job_is_the_same_in_a_batch(api: Api, name: str, job: Json) -> None:
    api.put("/job-types/strict", {"payload_schema": {"type": "object"}})
    alone, in_batch = api.enqueue(**job, status=422), api.batch({}, job, status=422)
    assert [(error["pointer"], error["code"]) for error in in_batch["errors"]] == [
        (f"/jobs/1{error['pointer']}", error["code"]) for error in alone["errors"]
    ]


def test_batch_stores_its_trace_context_with_each_job(api: Api, db: TestDatabase) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    body = {"jobs": [{"queue": api.queue, "job_type": "test"}] * 2}
    assert api.http.post("/jobs/batch", json=body, headers=trace).status_code == 201
    assert [dict(row) for row in db.rows("SELECT traceparent, tracestate FROM jobs")] == [trace, trace]
