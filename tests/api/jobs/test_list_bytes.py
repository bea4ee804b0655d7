"""Byte limit of lists: the page is short and has a cursor, and the broker reads no more rows."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, broker_process, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.document import component, operations
from tests.database import TestDatabase
from tests.http.test_memory import Memory

KIB = 1024
CAP = 20 * KIB

# One dead letter for each fingerprint: as many groups as rows.
COPY_LETTERS = """
INSERT INTO dead_letters
SELECT (json_populate_record(letter, json_build_object(
    'id', longshore_generate_id(letter.lane, letter.dead_at), 'fingerprint', number || $2
))).*
FROM dead_letters AS letter, generate_series(1, 100) AS number
WHERE letter.id = $1
"""
INSERT_WORKERS = "INSERT INTO workers (id) SELECT $1 || number FROM generate_series(1, 200) AS number"
INSERT_API_KEYS = """
INSERT INTO api_keys (id, name, mac, scopes, created_at)
SELECT number::text, $1, 'x', '{read}', now() + make_interval(secs => number / 2)
FROM generate_series(1, 200) AS number
"""


@pytest.fixture(scope="module")
def limited_broker(dsn: str) -> Iterator[RunningBroker]:
    """A broker whose list pages end at 20 KiB."""
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_list_bytes": CAP}), dsn) as broker:
        yield broker


@pytest.fixture
def limited(limited_broker: RunningBroker, db: TestDatabase, queue: str) -> Api:
    return Api(limited_broker.http, queue)


@pytest.fixture
def api_keys(db: TestDatabase) -> Iterator[None]:
    """Two hundred API keys. The brokers do not notice them: their version number is unchanged."""
    db.execute(INSERT_API_KEYS, "k" * 100)
    yield
    db.execute("DELETE FROM api_keys")


def schema(number: int) -> Json:
    return {"payload_schema": {"type": "object", "description": "x" * 6 * KIB, "title": str(number)}}


def fill(api: Api, db: TestDatabase) -> dict[str, tuple[str, Json]]:
    """Creates lists of at least 36 KiB each. Returns their paths and parameters."""
    job = {"payload": "x" * 6 * KIB, "metadata": {"m": "x" * KIB}}
    api.batch(*[job] * 6)
    for _ in range(6):
        api.dead_letter({"message": "no", "details": "x" * 6 * KIB}, queue=f"{api.queue}.dead")
    for number in range(6):
        api.put(
            f"/schedules/{api.queue}-{number}",
            {"every_seconds": 3600, "job": {"job_type": "test", "payload": "x" * 6 * KIB}},
        )
        api.put(f"/job-types/{api.queue}-{number}", schema(number))
    for number in range(160):
        api.put(
            f"/queues/{api.queue}-{number:03}", {"max_running": 1, "health": {"max_depth": 1, "max_age_seconds": 1}}
        )
    many = api.enqueue(queue=f"{api.queue}.many", max_attempts=10, retry={"base_seconds": 0})
    for _ in range(6):
        claimed = api.claim_one(queues=[f"{api.queue}.many"], wait_seconds=10)
        api.fail(claimed, error={"message": "no", "details": "x" * 6 * KIB}, retry_after_seconds=0)
    letter = api.dead_letter(queue=f"{api.queue}.groups")
    db.execute(COPY_LETTERS, letter["id"], "x" * 240)
    db.execute(INSERT_WORKERS, "w" * 100)
    return {
        "jobs": ("/jobs", {"queue": api.queue}),
        "dead letters": ("/dead-letters", {}),
        "groups of dead letters": ("/dead-letters/groups", {}),
        "dead jobs": ("/jobs", {"state": "dead"}),
        "schedules": ("/schedules", {}),
        "job types": ("/job-types", {}),
        "queues": ("/queues", {}),
        "attempts": (f"/jobs/{many['id']}/attempts", {}),
        "workers": ("/workers", {}),
        "API keys": ("/api-keys", {}),
    }


def pages(api: Api, path: str, params: Json) -> list[tuple[int, list[Json]]]:
    """The bytes and the items of every page."""
    found: list[tuple[int, list[Json]]] = []
    cursor: Json = {}
    while True:
        response = api.http.get(path, params={**params, **cursor, "limit": 1000})
        body = response.json()
        found.append((len(response.content), body["items"]))
        if "next_cursor" not in body:
            return found
        cursor = {"cursor": body["next_cursor"]}


def key(item: Json) -> Any:
    names = ("id", "name", "started_at", "sample", "worker_id")
    return next(item[name] for name in names if name in item)


def list_paths() -> set[str]:
    """The paths of all operations that return a list."""
    responses = {
        operation.path: component(content["schema"])
        for operation in operations()
        for status, content in operation.bodies()
        if operation.method == "GET" and status == "200" and "schema" in content
    }
    return {path for path, schema in responses.items() if "items" in schema.get("properties", {})}


@pytest.mark.slow
@pytest.mark.usefixtures("api_keys")
def test_every_list_ends_a_page_at_the_byte_limit_and_continues_with_its_cursor(
    api: Api, limited: Api, db: TestDatabase
) -> None:
    wrong: dict[str, Any] = {}
    lists = fill(api, db)
    assert {re.sub("[0-9a-f-]{36}", "{job_id}", path) for path, _ in lists.values()} == list_paths()
    for name, (path, params) in lists.items():
        complete = [item for _, items in pages(api, path, params) for item in items]
        parts = pages(limited, path, params)
        if (
            len(parts) < 2
            or max(size for size, _ in parts) > CAP + 200
            or [item for _, items in parts for item in items] != complete
        ):
            wrong[name] = [(size, [key(item) for item in items]) for size, items in parts], len(complete)
    assert wrong == {}


def test_item_larger_than_the_byte_limit_is_a_page_of_its_own(api: Api, limited: Api) -> None:
    large = api.enqueue(payload="x" * 2 * CAP)
    small = api.enqueue()
    found = [[item["id"] for item in items] for _, items in pages(limited, "/jobs", {"order": "asc"})]
    assert found == [[large["id"]], [small["id"]]]


def test_lists_can_omit_payloads(api: Api, limited: Api) -> None:
    jobs = [api.enqueue(payload="x" * CAP) for _ in range(3)]
    letters = [api.dead_letter(queue=f"{api.queue}.dead", payload="x" * CAP) for _ in range(3)]
    (listed,) = [items for _, items in pages(limited, "/jobs", {"queue": api.queue, "payload": "false"})]
    (dead,) = [items for _, items in pages(limited, "/dead-letters", {"payload": "false"})]
    assert listed == [
        {name: value for name, value in api.job(job["id"]).items() if name != "payload"} for job in reversed(jobs)
    ]
    assert [letter["id"] for letter in dead] == [letter["id"] for letter in reversed(letters)]
    assert [letter for letter in dead if "payload" in letter] == []
    assert [job for job in api.get("/jobs", payload="true")["items"] if "payload" not in job] == []


def test_byte_limit_of_lists_is_published(api: Api, limited: Api) -> None:
    assert (api.get("/limits")["max_list_bytes"], limited.get("/limits")["max_list_bytes"]) == (8 * KIB * KIB, CAP)


@pytest.mark.slow
def test_listing_100_mb_of_jobs_takes_little_memory(dsn: str, db: TestDatabase, queue: str) -> None:
    """The list is six times as large as a page, and the broker reads one page from the database."""
    with broker_process(dsn, log_level="error") as (broker, process):
        api, memory = Api(broker.http, queue), Memory(process.pid)
        for _ in range(16):
            api.batch(*[{"payload": "x" * 250_000}] * 25)
        api.get("/jobs", limit=1000)
        memory.reset_peak()
        before = memory.now()
        response = broker.http.get("/jobs", params={"limit": 1000})
        assert len(response.content) <= 8 * KIB * KIB + 200
        assert json.loads(response.content)["next_cursor"]
        assert memory.peak() - before <= 50_000_000
