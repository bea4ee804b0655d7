"""Whether claims stay flat: buffers and time of claims of 100 and of 1 with millions of jobs around, or dead rows in the way, against those
of 1,000 ready jobs, measured in turns. Runs the product's own rooms on a Postgres of its own with durable settings."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from asyncpg import Connection, Record

from app import log
from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from app.queues.schemas import QueueConfig
from bench.cost import BACKLOG, HISTORY, OPTIONS, PAYLOAD
from bench.meter import Tally
from bench.scene import Scene, Size, job, scene

READY = 1_000  # of every queue that is measured, beside the crowd
CHUNK = 10_000
QUEUE = "crowded"
# What a claim and a completion leave behind: two dead versions of the row, and their entries in the indexes.
CLAIMED = """
UPDATE jobs
SET state = 'running', lease_expires_at = now(), lease_token = gen_random_uuid(), worker_id = 'worker-1', started_at = now()
WHERE lane = $1 AND state = 'ready'
"""
COMPLETED = "DELETE FROM jobs WHERE lane = $1 AND state = 'running'"


@dataclass(frozen=True, slots=True)
class Crowd:
    """What is around the 1,000 jobs, all of it older. `held`: how many came and went while somebody held a snapshot."""

    ready: int = 0
    future: int = 0
    finished: int = 0
    churned: int = 0
    held: int = 0

    @property
    def name(self) -> str:
        parts = [f"{getattr(self, name):,} {told}" for name, told in _TOLD.items() if getattr(self, name)]
        return "all of these" if len(parts) > 1 else "".join(parts) or "nothing else"


_TOLD = {
    "ready": "ready",
    "future": "future",
    "finished": "finished",
    "churned": "churned",
    "held": "churned under a held snapshot",
}


@dataclass(frozen=True, slots=True)
class Cost:
    buffers: float
    ms: float

    @classmethod
    def of(cls, calls: Tally) -> "Cost":
        return cls(calls.per_job("buffers"), calls.per_call("seconds") * 1000)


class Crowded:
    """A queue with a crowd in it, and the same in a database of its own where nothing else is."""

    def __init__(self, crowded: Scene, reference: Scene) -> None:
        self._crowded = crowded
        self._reference = reference
        self._queues = 0

    async def gather(self, crowd: Crowd, snapshots: "Connection[Record]") -> None:
        await self._crowded.broker_services.queue_service.put(QUEUE, QueueConfig())
        lane = (await self._crowded.broker_services.queues.get(QUEUE)).all_lanes[0]
        await self._churn(lane, "00000001", crowd.churned)
        await snapshots.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queues")
        await self._churn(lane, "00000002", crowd.held)
        if not crowd.held:
            await snapshots.execute("ROLLBACK")
        now = datetime.now(UTC)
        await self._fill(BACKLOG, lane, "00000003", "ready", now, crowd.ready)
        await self._fill(BACKLOG, lane, "00000004", "scheduled", now + timedelta(days=7), crowd.future)
        await self._fill(HISTORY, lane, "00000005", "completed", now, crowd.finished)
        await self._crowded.enqueue_many([job(QUEUE)] * READY)
        await self._crowded.db.rows("ANALYZE")

    async def _fill(self, sql: str, lane: int, prefix: str, state: str, at: datetime, count: int) -> None:
        for first in range(1, count + 1, CHUNK):
            show(f"{state}: {first - 1:,} of {count:,}")
            last = min(first + CHUNK - 1, count)
            await self._crowded.db.rows(_with_lane(sql, lane), lane, prefix, state, at, PAYLOAD, first, last)

    async def _churn(self, lane: int, prefix: str, count: int) -> None:
        for first in range(1, count + 1, CHUNK):
            show(f"churned: {first - 1:,} of {count:,}")
            last = min(first + CHUNK - 1, count)
            await self._crowded.db.rows(
                _with_lane(BACKLOG, lane), lane, prefix, "ready", datetime.now(UTC), PAYLOAD, first, last
            )
            await self._crowded.db.rows(CLAIMED, lane)
            await self._crowded.db.rows(COMPLETED, lane)

    async def measure(self, n: int, calls: int, warm_up: int) -> tuple[Cost, Cost]:
        """In turns, so that whatever else the machine does meets both."""
        crowded, reference = Tally(), Tally()
        for call in range(warm_up + calls):
            show(f"claims of {n}: {call} of {warm_up + calls}")
            await self._crowded.claim_and_complete(QUEUE, n, crowded if call >= warm_up else Tally())
            await self._crowded.enqueue_many([job(QUEUE)] * n)
            await self._reference.claim_and_complete(
                await self._new_queue(), n, reference if call >= warm_up else Tally()
            )
        return Cost.of(crowded), Cost.of(reference)

    async def _new_queue(self) -> str:
        """The reference has never been claimed from."""
        self._queues += 1
        name = f"reference-{self._queues}"
        await self._reference.enqueue_many([job(name)] * READY)
        return name


def _with_lane(sql: str, lane: int) -> str:
    """A settlement finds the lane in the id, 38 bits from its end."""
    return sql.replace("to_hex(n)", f"to_hex(n + {lane << 38})")


def show(line: str) -> None:
    print(f"\r{line:60}\r", end="", file=sys.stderr, flush=True)


@asynccontextmanager
async def crowded(dsn: str) -> AsyncIterator[tuple[Crowded, "Connection[Record]"]]:
    """Two copies of the migrated database, which are gone afterwards."""
    admin = await asyncpg.connect(_database(dsn, "template1"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        for name in ("crowded", "reference"):
            await admin.execute(f"CREATE DATABASE {name} TEMPLATE {urlsplit(dsn).path[1:]}")
            stack.push_async_callback(admin.execute, f"DROP DATABASE {name}")
        size = Size(0, 0)
        built = Crowded(
            *[await stack.enter_async_context(scene(_database(dsn, name), size)) for name in ("crowded", "reference")]
        )
        snapshots = await asyncpg.connect(_database(dsn, "crowded"))
        stack.push_async_callback(snapshots.close)
        yield built, snapshots


def _database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def measure(dsn: str, crowds: Sequence[Crowd], wanted: argparse.Namespace) -> None:
    print(
        f"{'beside 1,000 ready jobs':52}{'claims of':>10}{'buffers':>9}{'against':>9}{'ratio':>7}{'ms':>9}{'against':>9}{'ratio':>7}"
    )
    for crowd in crowds:
        async with crowded(dsn) as (built, snapshots):
            await built.gather(crowd, snapshots)
            for n, calls in ((100, wanted.batches), (1, wanted.singles)):
                report(crowd.name, n, *await built.measure(n, calls, wanted.warm_up))


def report(name: str, n: int, found: Cost, reference: Cost) -> None:
    show("")
    buffers = f"{found.buffers:9.1f}{reference.buffers:9.1f}{found.buffers / reference.buffers:7.2f}"
    print(f"{name:52}{n:10}{buffers}{found.ms:9.2f}{reference.ms:9.2f}{found.ms / reference.ms:7.2f}", flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40, help="claims of 100 that are measured")
    parser.add_argument("--singles", type=int, default=100, help="claims of 1 that are measured")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=8,
        help="claims before them; Postgres plans a statement five times before it keeps a plan",
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes below, e.g. 0.01 for a look")
    for name, (count, told) in _SIZES.items():
        parser.add_argument(
            f"--{name}", type=int, default=count, help=f"{told} (default {count:,}); 0 leaves the row out"
        )
    return parser.parse_args()


_SIZES = {
    "ready": (5_000_000, "older ready jobs"),
    "future": (1_000_000, "scheduled jobs"),
    "finished": (1_000_000, "finished jobs"),
    "churned": (400_000, "jobs that came and went, never vacuumed"),
    "held": (100_000, "jobs that came and went under a held snapshot"),
}


def main() -> None:
    wanted = options()
    sizes = {name: int(getattr(wanted, name) * wanted.share) for name in _SIZES}
    crowds = [Crowd(), *(Crowd(**{name: count}) for name, count in sizes.items() if count), Crowd(**sizes)]
    log.configure("warning")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres", options=OPTIONS) as dsn:
            migrations.upgrade(dsn)
            asyncio.run(measure(dsn, crowds, wanted))


if __name__ == "__main__":
    main()
