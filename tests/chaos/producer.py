"""A producer: enqueues its share of the jobs at a steady pace, and repeats each call that has a key until it knows the outcome."""

import asyncio
import random
from pathlib import Path

from tests.api import Json
from tests.chaos.client import Response, ApiKeys, Client, pause
from tests.chaos.history import History, Item, now
from tests.chaos.options import Options, from_json
from tests.chaos.sql_producer import SqlProducer
from tests.chaos.workload import item_of, jobs_of, batch_sizes, enqueue_mode

REPEATED_CALLS = 0.02  # share of acknowledged calls that are repeated all the same
MAX_CONCURRENT_CALLS = 4  # calls under way at once


class Producer:
    def __init__(self, options: Options, number: int, client: Client, sql: SqlProducer) -> None:
        self.options = options
        self.number = number
        self._client = client
        self._sql = sql
        self._rng = random.Random(f"{options.seed}/producer/{number}")
        self._concurrency = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def run(self) -> None:
        """At the pace at which all are sent when the faults end; a fault leaves a backlog, which is then caught up."""
        todo, began, sent = batch_sizes(self.options, self.number), now(), 0
        share = sum(todo)
        async with asyncio.TaskGroup() as group:
            for call, size in enumerate(todo):
                await asyncio.sleep(max(0, began + self.options.load_seconds * sent / share - now()))
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
        for told in job_ids_of(response.body) if response.ok else ():
            if self._rng.random() < self.options.cancels:
                await self._client.call("cancel", f"/jobs/{told}/cancel", {}, items=[Item(id=told)], read=state_of)

    async def _enqueue_until_known(self, key: str, jobs: list[Json]) -> Response:
        """The same key, so that it makes no difference how often. No limit: the harness ends us if need be. Without a key it is sent
        again only while it was certainly not done: otherwise its outcome stays unknown."""
        items = [item_of(job) for job in jobs]
        path, body = ("/jobs", jobs[0]) if len(jobs) == 1 else ("/jobs/batch", {"jobs": jobs})
        tries = 0
        while True:
            response = await self._client.call(
                "enqueue", path, body, key=key, items=items, read=lambda told: read(told, items)
            )
            if not response.should_retry or (response.kind == "info" and not key):
                return response
            tries += 1
            await asyncio.sleep(pause(tries, self._rng))


def job_ids_of(body: Json) -> list[str]:
    return [str(result["job_id"]) for result in body["results"]] if "results" in body else [str(body["id"])]


def state_of(job: Json) -> list[Item]:
    return [Item(id=job["id"], state=job["state"])]


def read(body: Json, asked: list[Item]) -> list[Item]:
    """Ids, and whether the job is a new one. A single answer says that in a header; of a repeated call whose payload it has does."""
    if "results" in body:
        return [
            Item(key=item.key, id=result["job_id"], status=result["status"])
            for item, result in zip(asked, body["results"], strict=True)
        ]
    own = body["payload"]["key"] == asked[0].key and "duplicate" not in body
    return [Item(key=asked[0].key, id=body["id"], status="created" if own else "duplicate")]


async def run_producer(options: Options, number: int, folder: Path, bases: list[str], dsn: str) -> None:
    proc = f"p{number}"
    keys = ApiKeys.read(folder.parent, "producer", random.Random(f"{options.seed}/{proc}/keys"))
    client = Client(bases, History(folder, proc), random.Random(f"{options.seed}/{proc}/ways"), keys)
    sql = SqlProducer(dsn, client, random.Random(f"{options.seed}/{proc}/sql"))
    await Producer(options, number, client, sql).run()
    await sql.close()


def main(args: list[str]) -> None:
    asyncio.run(run_producer(from_json(args[0]), int(args[1]), Path(args[2]), args[3].split(","), args[4]))
