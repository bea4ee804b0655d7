"""The largest requests that are allowed, for measurements of the event loop.

Each begins with an empty database and finds as much to do as it can.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple
from uuid import uuid4

import httpx

from tests.api_client import Api, Json
from tests.database import TestDatabase

Send = Callable[[], httpx.Response]

BULK = 10_000  # the highest limit of a replay or a cancellation
BATCH = 1000
# A thousand of these fit into a claim response of 8 MiB, which counts 1 KiB for the rest of a job.
LARGE = "x" * 7000
# A hundred dead letters are replayed in one batch.
HUGE_LETTERS, HUGE_BYTES = 100, 200_000
SCHEMA_PROPERTIES = 200
QUEUES = 9000
NEW_QUEUES = 100


class LargeRequest(NamedTuple):
    """`prepare` creates what the request needs, and returns the call that is measured.

    `count` reads from the response how much was done: a request that finds nothing to do proves
    nothing.
    """

    name: str
    prepare: Callable[[], Send]
    count: Callable[[Json], int]
    expected: int


def dependency_chain(jobs: int, parents: int) -> list[Json]:
    """Jobs that each depend on the jobs before them."""
    return [
        {"ref": f"r{n}", "depends_on": [f"r{before}" for before in range(max(0, n - parents), n)]} for n in range(jobs)
    ]


def cycles(jobs: int) -> list[Json]:
    """Jobs that each depend on themselves and on all others."""
    return [{"ref": f"r{n}", "depends_on": [f"r{other}" for other in range(jobs)]} for n in range(jobs)]


def schema() -> Json:
    return {"properties": {f"p{n}": {"type": "string", "pattern": "^[a-z]{1,20}$"} for n in range(SCHEMA_PROPERTIES)}}


def with_status(status: str) -> Callable[[Json], int]:
    return lambda response: sum(result["status"] == status for result in response["results"])


def length_of(name: str) -> Callable[[Json], int]:
    return lambda response: len(response[name])


def value_of(name: str) -> Callable[[Json], int]:
    return lambda response: int(response[name])


def invalid_jobs(problem: Json) -> int:
    return int(problem["detail"].split(" of the jobs are invalid")[0])


class RequestFactory:
    """Prepares requests. Encodes their bodies in advance, so that sending them takes little CPU."""

    def __init__(self, api: Api, db: TestDatabase) -> None:
        self._api = api
        self._db = db

    def post(self, path: str, body: Json) -> Send:
        content = json.dumps(body).encode()
        return lambda: self._api.http.post(path, content=content)

    def get(self, path: str, **params: Any) -> Send:
        return lambda: self._api.http.get(path, params=params)

    def batch(self, *jobs: Json, **fields: Any) -> Send:
        self._db.empty()
        body = [{"queue": self._api.queue, "job_type": "test", **job} for job in jobs]
        return self.post("/jobs/batch", {"jobs": body, **fields})

    def after_enqueue(self, jobs: int, request: Callable[[], Send], **fields: Any) -> Send:
        enqueue = self.batch(*[fields] * BATCH)
        for _ in range(jobs // BATCH):
            assert enqueue().status_code == 201
        return request()

    def claim(self) -> Send:
        return self.post("/claim", {"queues": [self._api.queue], "max_jobs": BATCH, "worker_id": "w"})

    def heartbeat(self, **fields: Any) -> Send:
        return self.post("/heartbeat", {"worker_id": "w", "leases": self._leases(**fields)})

    def settle(self, **fields: Any) -> Send:
        return self.post("/settle", {"items": self._leases(**fields)})

    def _leases(self, **fields: Any) -> list[Json]:
        jobs = self._api.claim(max_jobs=BATCH, worker_id="w")["jobs"]
        return [{"job_id": job["id"], "lease_token": job["lease_token"], **fields} for job in jobs]

    def save_dead_letters(self) -> None:
        """Creates dead letters and saves a copy of them: to create them again takes seconds."""
        failure = {"outcome": "fail", "error": {"message": "no"}, "retryable": False}
        self._db.empty()
        for _ in range(BULK // BATCH):
            self._api.enqueue_many(BATCH, payload={"a": 1})
            self._api.settle(*self._leases(**failure))
        self._db.execute("CREATE TABLE saved_dead_letters AS TABLE dead_letters")

    def with_dead_letters(self, request: Send, letters: int = BULK, **changes: str) -> Send:
        """`changes` are SQL expressions by column."""
        self._db.empty()
        self._db.execute("INSERT INTO dead_letters TABLE saved_dead_letters LIMIT $1", letters)
        for column, expression in changes.items():
            self._db.execute(f"UPDATE dead_letters SET {column} = {expression}")
        return request

    def pause(self) -> Send:
        self._api.resume()
        return self.post(f"/queues/{self._api.queue}/pause", {})

    def statistics(self) -> Send:
        """Each queue has a ready job."""
        self._db.empty()
        self._db.execute("INSERT INTO stat_totals SELECT id * 256, 0, 0, 1, 0, 0, 0, 0 FROM queues LIMIT $1", QUEUES)
        return self.get("/stats")


def large_requests(api: Api, db: TestDatabase) -> Iterator[LargeRequest]:
    requests = RequestFactory(api, db)
    yield from _enqueues(api, requests)
    yield from _worker_requests(requests)
    yield from _job_requests(api, requests)
    requests.save_dead_letters()
    yield from _dead_letter_requests(api, requests)


def _enqueues(api: Api, requests: RequestFactory) -> Iterator[LargeRequest]:
    def batch(name: str, jobs: list[Json], counted: Callable[[Json], int], **fields: Any) -> LargeRequest:
        return LargeRequest(name, lambda: requests.batch(*jobs, **fields), counted, len(jobs))

    created, rejected = with_status("created"), with_status("rejected")
    api.put("/job-types/checked", {"payload_schema": schema()})
    invalid = [{"job_type": "checked", "payload": {f"p{n}": "ABC" for n in range(SCHEMA_PROPERTIES)}}] * BATCH
    yield batch("dependencies", dependency_chain(BATCH, 200), created)
    yield batch("cycles", cycles(400), rejected, atomic=False)
    yield batch("many values", [{"payload": {f"p{n}": n for n in range(300)}}] * BATCH, created)
    yield batch("large jobs", [{"payload": LARGE}] * BATCH, created)
    yield batch("invalid payloads", invalid, invalid_jobs)
    yield batch("invalid payloads, each with its result", invalid, rejected, atomic=False)


def _worker_requests(requests: RequestFactory) -> Iterator[LargeRequest]:
    def after_enqueue(
        name: str, request: Callable[[], Send], counted: Callable[[Json], int], **fields: Any
    ) -> LargeRequest:
        return LargeRequest(name, lambda: requests.after_enqueue(BATCH, request, **fields), counted, BATCH)

    complete, failure = {"outcome": "complete"}, {"outcome": "fail", "error": {"message": "x" * 2000}}
    leases, settled = length_of("leases"), value_of("settled")
    yield after_enqueue("claim of large jobs", requests.claim, length_of("jobs"), payload=LARGE)
    yield after_enqueue("heartbeat", requests.heartbeat, leases)
    yield after_enqueue("large checkpoints", lambda: requests.heartbeat(checkpoint=LARGE), leases)
    yield after_enqueue("settlements", lambda: requests.settle(**complete), settled)
    yield after_enqueue("large results", lambda: requests.settle(**complete, result=LARGE), settled)
    yield after_enqueue("failures", lambda: requests.settle(**failure), settled)


def _job_requests(api: Api, requests: RequestFactory) -> Iterator[LargeRequest]:
    items, after = length_of("items"), requests.after_enqueue
    listed = requests.get("/jobs", queue=api.queue, limit=BATCH)
    cancel = requests.post("/jobs/cancel", {"filter": {"queue": api.queue}, "limit": BULK})
    purge = requests.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    yield LargeRequest("list of jobs", lambda: after(BATCH, lambda: listed), items, BATCH)
    yield LargeRequest("list of large jobs", lambda: after(BATCH, lambda: listed, payload=LARGE), items, BATCH)
    yield LargeRequest("cancel", lambda: after(BULK, lambda: cancel), value_of("cancelled"), BULK)
    yield LargeRequest("purge", lambda: after(BULK, lambda: purge), value_of("purged"), BULK)


def _dead_letter_requests(api: Api, requests: RequestFactory) -> Iterator[LargeRequest]:
    items, given = length_of("items"), requests.with_dead_letters
    replay = {"filter": {"job_type": "test"}, "limit": BULK}
    moved = {**replay, "overrides": {"queue": f"{api.queue}.moved", "payload_merge": {"b": 1}}}
    replays, moves = requests.post("/dead-letters/replay", replay), requests.post("/dead-letters/replay", moved)
    purge = requests.post("/dead-letters/purge", {"filter": {"job_type": "test"}, "dry_run": False})
    listed, grouped = requests.get("/dead-letters", limit=BATCH), requests.get("/dead-letters/groups", limit=BATCH)
    patched = requests.post("/dead-letters/replay", {**replay, "overrides": {"payload_merge": {"b": 1}}})
    fingerprint = "left(md5(id::text), 3)"
    large, huge = (f"json_build_object('a', repeat('x', {size}))" for size in (len(LARGE), HUGE_BYTES))
    yield LargeRequest("replay", lambda: given(replays), value_of("replayed"), BULK)
    yield LargeRequest("replay into another queue", lambda: given(moves), value_of("replayed"), BULK)
    yield LargeRequest("purge of dead letters", lambda: given(purge), value_of("purged"), BULK)
    yield LargeRequest("list of dead letters", lambda: given(listed), items, BATCH)
    yield LargeRequest("list of large dead letters", lambda: given(listed, BATCH, payload=large), items, BATCH)
    for name, request in {"replay of huge jobs": patched, "replay of huge jobs into another queue": moves}.items():
        yield LargeRequest(
            name, partial(given, request, HUGE_LETTERS, payload=huge), value_of("replayed"), HUGE_LETTERS
        )
    yield LargeRequest("groups of dead letters", lambda: given(grouped, fingerprint=fingerprint), items, BATCH)


def add_queues(api: Api, db: TestDatabase) -> None:
    """Adds queues in SQL, because to create them one by one takes minutes."""
    api.configure()
    db.execute(
        """INSERT INTO queues (id, name, config)
        SELECT max(id) + number, 'one-of-many-' || number, '{"max_waiting": 1000, "default_lease_seconds": 30}'
        FROM queues, generate_series(1, $1) AS number
        GROUP BY number
        """,
        QUEUES,
    )
    api.reconfigure(max_waiting=BULK)


def requests_with_many_queues(api: Api, db: TestDatabase) -> Iterator[LargeRequest]:
    requests, names = RequestFactory(api, db), (f"{api.queue}.{number}" for number in count())

    def claim_of_unknown_queue() -> Send:
        return requests.post("/claim", {"queues": [next(names)]})

    def first_job() -> Send:
        return requests.post("/jobs", {"queue": next(names), "job_type": "test"})

    def first_jobs() -> Send:
        return requests.batch(*[{"queue": name} for name in islice(names, NEW_QUEUES)])

    def after_enqueue(request: Send) -> Callable[[], Send]:
        return lambda: requests.after_enqueue(BATCH, lambda: request)

    items = length_of("items")
    cancel = requests.post("/jobs/cancel", {"all": True, "limit": BULK, "dry_run": True})
    yield LargeRequest("claim of an unknown queue", claim_of_unknown_queue, length_of("jobs"), 0)
    yield LargeRequest("unknown job", lambda: requests.get(f"/jobs/{uuid4()}"), value_of("status"), 404)
    yield LargeRequest("pause", requests.pause, value_of("paused"), 1)
    yield LargeRequest("first job of a queue", first_job, value_of("attempt"), 0)
    yield LargeRequest("first jobs of many queues", first_jobs, with_status("created"), NEW_QUEUES)
    yield LargeRequest("list of queues", lambda: requests.get("/queues", limit=BATCH), items, BATCH)
    yield LargeRequest("statistics", requests.statistics, lambda stats: int(stats["counts"]["ready"]), QUEUES)
    yield LargeRequest("jobs of all queues", after_enqueue(requests.get("/jobs", limit=BATCH)), items, BATCH)
    yield LargeRequest("cancel in all queues", after_enqueue(cancel), value_of("matched"), BATCH)
