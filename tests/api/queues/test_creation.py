"""Creation of queues on first use: one statement creates all queues of a call; a rejected call
creates none.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from app.broker import Broker
from app.enqueue.schemas import JobCreate
from app.http.authorization import FULL_ACCESS
from tests.api.queues.test_queues import names
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background

UNKNOWN_JOB = "01890000-0000-7000-8000-000000000000"


def rejected_calls(api: Api) -> dict[str, Callable[[str], Any]]:
    """Calls that name a missing queue and are rejected, before the transaction or inside it."""
    prefix = api.queue

    def batch(new: str, *others: Json, key: str | None = None, status: int) -> Any:
        return api.batch({"queue": new}, *others, status=status, key=key)

    def reuse(new: str) -> None:
        api.enqueue(key=f"{prefix}-single")
        api.enqueue(queue=new, key=f"{prefix}-single", status=422)

    def reuse_batch(new: str) -> None:
        api.batch({}, key=f"{prefix}-batch")
        batch(new, key=f"{prefix}-batch", status=422)

    def replay(new: str) -> None:
        job = api.enqueue(queue=f"{prefix}.dead", payload={"big": "x" * 200_000})
        api.fail(api.claim_one(queues=[f"{prefix}.dead"]), retryable=False)
        overrides = {"queue": new, "payload_merge": {"more": "x" * 100_000}}
        api.post("/dead-letters/replay", {"ids": [job["id"]], "overrides": overrides}, status=413)

    return {
        "bad job": lambda new: batch(new, {"priority": 1_000_000}, status=422),
        "unknown ref": lambda new: batch(new, {"depends_on": ["missing"]}, status=422),
        "cycle": lambda new: batch(new, {"ref": "a", "depends_on": ["a"]}, status=422),
        "unknown parent": lambda new: batch(new, {"depends_on": [UNKNOWN_JOB]}, status=422),
        "full queue": lambda new: batch(new, {"queue": f"{prefix}.full"}, {"queue": f"{prefix}.full"}, status=429),
        "duplicate": lambda new: batch(new, {"unique": {"key": "k", "on_duplicate": "reject"}}, status=409),
        "used key of a batch": reuse_batch,
        "used key of a job": reuse,
        "unknown parent of a job": lambda new: api.enqueue(queue=new, depends_on=[UNKNOWN_JOB], status=422),
        "unknown parent, not atomic": lambda new: api.batch(
            {"queue": new, "depends_on": [UNKNOWN_JOB]}, atomic=False, status=207
        ),
        "payload of a replay": replay,
    }


def test_rejected_call_creates_no_queue(api: Api) -> None:
    api.put(f"/queues/{api.queue}.full", {"max_waiting": 1})
    api.enqueue(unique={"key": "k"})
    created = []
    for number, (case, call) in enumerate(rejected_calls(api).items()):
        call(f"{api.queue}-{number}")
        created += [(case, name) for name in names(api) if name == f"{api.queue}-{number}"]
    assert created == []


def test_new_queues_of_a_batch_are_created_by_one_statement(api: Api, db: TestDatabase) -> None:
    """Each row keeps the transaction (xmin) and the command (cmin) that created it."""
    jobs = [{"queue": f"{api.queue}-{number}"} for number in range(200)]
    assert api.batch(*jobs)["created"] == 200
    assert len(names(api)) == 200
    assert (
        db.value("SELECT count(DISTINCT (xmin::text, cmin::text)) FROM queues WHERE name LIKE $1", f"{api.queue}-%")
        == 1
    )
    assert api.claim(queues=[f"{api.queue}-199"])["jobs"] != []


def test_batches_that_share_new_queues_all_succeed(api: Api, second_api: Api, background: Background) -> None:
    """Two brokers choose the same ids for new queues; the database rejects one of the calls, and
    that broker repeats it.
    """
    brokers = [api, second_api]

    def store(number: int) -> int:
        jobs = [{"queue": f"{api.queue}-{(number + offset) % 30}"} for offset in range(10)]
        return int(brokers[number % 2].batch(*jobs)["created"])

    assert list(background.map(store, range(30))) == [10] * 30
    assert len(names(api)) == 30


@pytest.mark.slow
def test_batches_that_name_new_queues_in_opposite_orders_do_not_deadlock(
    http: httpx.Client, second_broker: RunningBroker, background: Background
) -> None:
    """Without sorting, each would lock ids that the other needs; sorted, both begin with the same
    id.
    """
    failures = []
    for round_number in range(10):
        ascending = [f"up-{round_number}-{number:02}" for number in range(90)]
        descending = [f"down-{round_number}-{number:02}" for number in reversed(range(90))]
        responses = background.together(
            partial(http.post, "/jobs/batch", json=jobs_of(ascending)),
            partial(second_broker.http.post, "/jobs/batch", json=jobs_of(descending)),
        )
        failures += [response.text for response in responses if response.status_code != 201]
    assert failures == []


def jobs_of(queues: list[str]) -> Json:
    return {"jobs": [{"job_type": "test", "queue": queue} for queue in queues]}


@pytest.mark.slow
def test_concurrent_enqueues_into_one_new_queue_are_inserted_in_batches(
    broker_services: Broker, loop: Loop, db: TestDatabase, queue: str
) -> None:
    """Once the first job has created the queue, the others are batched as usual."""

    async def enqueue_all() -> None:
        job = JobCreate(queue=queue, job_type="test")
        await asyncio.gather(*[broker_services.enqueuer.enqueue(job, {}, None, FULL_ACCESS) for _ in range(200)])

    loop.run(enqueue_all())
    assert db.value("SELECT count(*) FROM jobs") == 200
    assert db.value("SELECT count(DISTINCT xmin::text) FROM jobs") < 100


def test_queues_are_created_up_to_max_queues(dsn: str, db: TestDatabase, queue: str) -> None:
    limit = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL") + 2
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_queues": limit}), dsn) as broker:
        api = Api(broker.http, queue)
        jobs = [{"queue": f"{queue}-{number}"} for number in range(3)]
        assert api.batch(*jobs, status=429)["errors"][0]["pointer"] == "/jobs/2/queue"
        assert names(api) == []
        results = api.batch(*jobs, atomic=False, status=207)["results"]
        assert [result["status"] for result in results] == ["created", "created", "rejected"]
        assert names(api) == [f"{queue}-0", f"{queue}-1"]


def test_error_says_that_all_queue_ids_are_used(postgres: str, loop: Loop, queue: str) -> None:
    database = TestDatabase(create_database(postgres, loop, "queue_ids"), loop)
    database.execute("INSERT INTO queues (id, name, deleted_at) VALUES (65535, 'deleted', now())")
    with threaded_broker(TEST_SETTINGS, database.dsn) as broker:
        api, new_job = Api(broker.http, queue), {"queue": queue, "job_type": "test"}
        for response in (broker.http.put(f"/queues/{queue}", json={}), broker.http.post("/jobs", json=new_job)):
            problem = response.json()
            assert (response.status_code, problem["code"], problem["detail"]) == (
                429,
                "queue_limit",
                "no queue id is left: deleted queues keep theirs, so reuse the name of a deleted queue",
            )
        results = api.batch({"queue": "deleted"}, {}, atomic=False, status=207)["results"]
        assert [result["status"] for result in results] == ["created", "rejected"]
        assert [queue["name"] for queue in api.get("/queues")["items"]] == ["deleted"]
    database.close()


def test_enqueue_undeletes_a_queue_only_if_its_job_is_stored(api: Api) -> None:
    api.enqueue()
    api.complete(api.claim_one())
    api.delete(f"/queues/{api.queue}")
    api.batch({}, {"depends_on": [UNKNOWN_JOB]}, status=422)
    api.get(f"/queues/{api.queue}", status=404)
    api.batch({}, {})
    assert len(api.claim(max_jobs=10)["jobs"]) == 2
    api.get(f"/queues/{api.queue}")
