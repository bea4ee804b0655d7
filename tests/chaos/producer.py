"""A producer: enqueues its share of the jobs at a steady rate, and retries calls with an
Idempotency-Key until their outcome is known."""

import asyncio
import random
from pathlib import Path

from tests.api_client import Json
from tests.chaos.client import ApiKeys, Client, Response, pause
from tests.chaos.history import History, Item, now
from tests.chaos.options import Options, from_json
from tests.chaos.sql_producer import SqlProducer
from tests.chaos.workload import batch_sizes, enqueue_mode, item_of, jobs_of

REPEATED_CALLS = 0.02  # share of acknowledged calls that are repeated anyway
MAX_CONCURRENT_CALLS = 4


class Producer:
    def __init__(self, options: Options, number: int, client: Client, sql: SqlProducer) -> None:
        self.options = options
        self.number = number
        self._client = client
        self._sql = sql
        self._rng = random.Random(f"{options.seed}/producer/{number}")
        self._concurrency = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def run(self) -> None:
        """Sends the calls at such a rate that all are sent when the faults end.

        After a delay, calls are sent without pauses until the schedule is met again."""
        todo, started, sent = batch_sizes(self.options, self.number), now(), 0
        share = sum(todo)
        async with asyncio.TaskGroup() as group:
            for call, size in enumerate(todo):
                await asyncio.sleep(max(0, started + self.options.load_seconds * sent / share - now()))
                await self._concurrency.acquire()
                group.create_task(self._enqueue(call, size))
                sent += size

    async def _enqueue(self, call: int, size: int) -> None:
        jobs, way = jobs_of(self.options, self.number, call, size), enqueue_mode(self.options, self.number, call)
        try:
            if way == "sql":
                await self._sql.enqueue(jobs)
            else:
                await self._enqueue_over_http(f"p{self.number}-{call}" if way == "keyed" else "", jobs)
        finally:
            self._concurrency.release()

    async def _enqueue_over_http(self, key: str, jobs: list[Json]) -> None:
        response = await self._enqueue_until_known(key, jobs)
        while key and response.ok and self._rng.random() < REPEATED_CALLS:
            response = await self._enqueue_until_known(key, jobs)
        for job_id in job_ids_of(response.body) if response.ok else ():
            if self._rng.random() < self.options.cancels:
                await self._client.call("cancel", f"/jobs/{job_id}/cancel", {}, items=[Item(id=job_id)], read=state_of)

    async def _enqueue_until_known(self, key: str, jobs: list[Json]) -> Response:
        """Retries a call with the same Idempotency-Key until its outcome is known.

        There is no limit: the harness stops the process if necessary. A call without a key is
        retried only while it was certainly not done; otherwise its outcome stays unknown."""
        items = [item_of(job) for job in jobs]
        path, body = ("/jobs", jobs[0]) if len(jobs) == 1 else ("/jobs/batch", {"jobs": jobs})
        tries = 0
        while True:
            response = await self._client.call(
                "enqueue", path, body, key=key, items=items, read=lambda body: read(body, items)
            )
            if not response.should_retry or (response.kind == "info" and not key):
                return response
            tries += 1
            await asyncio.sleep(pause(tries, self._rng))


def job_ids_of(body: Json) -> list[str]:
    return [str(result["job_id"]) for result in body["results"]] if "results" in body else [str(body["id"])]


def state_of(job: Json) -> list[Item]:
    return [Item(id=job["id"], state=job["state"])]


def read(body: Json, requested: list[Item]) -> list[Item]:
    """Returns the ids, and whether each job is new.

    The response to a single job has a header for a duplicate; in a repeated call the payload
    shows it."""
    if "results" in body:
        return [
            Item(key=item.key, id=result["job_id"], status=result["status"])
            for item, result in zip(requested, body["results"], strict=True)
        ]
    is_new = body["payload"]["key"] == requested[0].key and "duplicate" not in body
    return [Item(key=requested[0].key, id=body["id"], status="created" if is_new else "duplicate")]


async def run_producer(options: Options, number: int, folder: Path, bases: list[str], dsn: str) -> None:
    proc = f"p{number}"
    keys = ApiKeys.read(folder.parent, "producer", random.Random(f"{options.seed}/{proc}/keys"))
    client = Client(bases, History(folder, proc), random.Random(f"{options.seed}/{proc}/ways"), keys)
    sql = SqlProducer(dsn, client, random.Random(f"{options.seed}/{proc}/sql"))
    await Producer(options, number, client, sql).run()
    await sql.close()


def main(args: list[str]) -> None:
    asyncio.run(run_producer(from_json(args[0]), int(args[1]), Path(args[2]), args[3].split(","), args[4]))
