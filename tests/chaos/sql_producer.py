"""A producer that shares the database: it enqueues with `longshore_enqueue_v1` in its own
transaction, which it may roll back."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from tests.api_client import Json, parse_time
from tests.chaos.client import Client, pause
from tests.chaos.history import Item, Kind, now
from tests.chaos.workload import item_of

ROLLED_BACK = 0.2  # share of transactions that are not committed
TIMEOUT_SECONDS = 10.0  # seconds for one statement
COMMON_FIELDS = (
    "queue",
    "job_type",
    "priority",
    "max_attempts",
    "timeout_seconds",
    "delay_seconds",
)  # same names as in HTTP
CONNECTION_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


class SqlProducer:
    """Uses one connection, opened on demand.

    Only a commit without a response has an unknown outcome."""

    def __init__(self, dsn: str, client: Client, rng: random.Random) -> None:
        self._dsn = dsn
        self._client = client
        self._rng = rng
        self._connection: Any = None
        self._lock = asyncio.Lock()

    async def enqueue(self, jobs: list[Json]) -> None:
        """Retries the transaction while it was certainly not done, unless it was rolled back on
        purpose."""
        commits, tries = self._rng.random() >= ROLLED_BACK, 0
        async with self._lock:
            while await self._transaction(jobs, commits=commits) == "fail" and commits:
                tries += 1
                await asyncio.sleep(pause(tries, self._rng))

    async def _transaction(self, jobs: list[Json], *, commits: bool) -> Kind:
        items, t0 = [item_of(job) for job in jobs], now()
        done: list[Item] = []
        kind: Kind = "fail"
        try:
            connection = await self._get_connection()
            await connection.execute("BEGIN")
            done = [await _enqueue_job(connection, job) for job in jobs]
            kind = "info" if commits else "fail"
            await connection.execute("COMMIT" if commits else "ROLLBACK")
            kind = "ok" if commits else "fail"
        except CONNECTION_ERRORS:
            await self.close()
        self._client.record("enqueue", kind, items, result_items=done if kind == "ok" else [], t0=t0)
        return kind

    async def _get_connection(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(
                self._dsn, timeout=TIMEOUT_SECONDS, command_timeout=TIMEOUT_SECONDS
            )
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(*CONNECTION_ERRORS):
                self._connection.terminate()
            self._connection = None


async def _enqueue_job(connection: Any, job: Json) -> Item:
    """Enqueues one job. For a unique key, the function does not return whether the job is new."""
    arguments = _arguments(job)
    values = ", ".join(f"{name} => ${number}" for number, name in enumerate(arguments, 1))
    id = await connection.fetchval(f"SELECT longshore_enqueue_v1({values})", *arguments.values())
    return Item(key=job["payload"]["key"], id=str(id), status="" if "unique" in job else "created")


def _arguments(job: Json) -> Json:
    arguments: Json = {name: job[name] for name in COMMON_FIELDS if name in job}
    arguments |= {name: parse_time(job[name]) for name in ("run_at", "expires_at") if name in job}
    arguments["payload"] = msgspec.json.encode(job["payload"]).decode()
    if "group" in job:
        arguments["group_key"] = job["group"]
    if "unique" in job:
        arguments |= {
            "unique_key": job["unique"]["key"],
            "on_duplicate": job["unique"].get("on_duplicate", "return_existing"),
        }
    return arguments
