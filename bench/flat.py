"""Measures whether claims stay flat: with millions of jobs around them, and with dead tuples in the
way.

Buffers and time of claims of 100 and of 1 are compared with those of 1,000 ready jobs alone, in
turns. It uses the product's own services on a separate Postgres with durable settings.
"""

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
from bench.cost import INSERT_FINISHED, INSERT_WAITING, OPTIONS, PAYLOAD
from bench.meter import Tally
from bench.scene import PolicyBench, Size, job, policy_bench

READY = 1_000  # jobs in every measured queue, besides the backlog
CHUNK = 10_000
QUEUE = "backlog"
# What a claim and a completion leave behind: two dead versions of the row, and their index entries.
CLAIMED = """
UPDATE jobs
SET state = 'running', lease_expires_at = now(), lease_token = gen_random_uuid(), worker_id = 'worker-1',
    started_at = now()
WHERE lane = $1 AND state = 'ready'
"""
# Jobs that were enqueued one by one have a ready span each, and leave as many dead index entries.
INSERT_CHURNED = INSERT_WAITING.replace("/ 100 AS batch", "AS batch")
COMPLETED = """
WITH completed AS (DELETE FROM jobs WHERE lane = $1 AND state = 'running')
DELETE FROM ready_spans WHERE lane = $1
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Jobs around the 1,000 ready ones, all of them older.

    `held`: jobs that came and went while a session held a snapshot.
    """

    ready: int = 0
    future: int = 0
    finished: int = 0
    churned: int = 0
    held: int = 0

    @property
    def name(self) -> str:
        parts = [f"{getattr(self, name):,} {label}" for name, label in _LABELS.items() if getattr(self, name)]
        return "all of these" if len(parts) > 1 else "".join(parts) or "nothing else"


_LABELS = {
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


class BacklogBench:
    """A queue with a backlog, and a reference in a database of its own without one."""

    def __init__(self, measured: PolicyBench, reference: PolicyBench) -> None:
        self._measured = measured
        self._reference = reference
        self._queues = 0

    async def fill(self, backlog: Backlog, snapshots: "Connection[Record]") -> None:
        await self._measured.broker_services.queue_service.put(QUEUE, QueueConfig(), "bench")
        lane = (await self._measured.broker_services.queues.get(QUEUE)).all_lanes[0]
        await self._churn(lane, "00000001", backlog.churned)
        await snapshots.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queues")
        await self._churn(lane, "00000002", backlog.held)
        if not backlog.held:
            await snapshots.execute("ROLLBACK")
        now = datetime.now(UTC)
        await self._fill(INSERT_WAITING, lane, "00000003", "ready", now, backlog.ready)
        await self._fill(INSERT_WAITING, lane, "00000004", "scheduled", now + timedelta(days=7), backlog.future)
        await self._fill(INSERT_FINISHED, lane, "00000005", "completed", now, backlog.finished)
        await self._measured.enqueue_many([job(QUEUE)] * READY)
        await self._measured.db.rows("ANALYZE")

    async def _fill(self, sql: str, lane: int, prefix: str, state: str, at: datetime, count: int) -> None:
        for first in range(1, count + 1, CHUNK):
            show(f"{state}: {first - 1:,} of {count:,}")
            last = min(first + CHUNK - 1, count)
            await self._measured.db.rows(_with_lane(sql, lane), lane, prefix, state, at, PAYLOAD, first, last)

    async def _churn(self, lane: int, prefix: str, count: int) -> None:
        for first in range(1, count + 1, CHUNK):
            show(f"churned: {first - 1:,} of {count:,}")
            last = min(first + CHUNK - 1, count)
            await self._measured.db.rows(
                _with_lane(INSERT_CHURNED, lane), lane, prefix, "ready", datetime.now(UTC), PAYLOAD, first, last
            )
            await self._measured.db.rows(CLAIMED, lane)
            await self._measured.db.rows(COMPLETED, lane)

    async def measure(self, n: int, calls: int, warm_up: int) -> tuple[Cost, Cost]:
        """Measures both in turns, so that other load on the machine affects both alike."""
        measured, reference = Tally(), Tally()
        for call in range(warm_up + calls):
            show(f"claims of {n}: {call} of {warm_up + calls}")
            await self._measured.claim_and_complete(QUEUE, n, measured if call >= warm_up else Tally())
            await self._measured.enqueue_many([job(QUEUE)] * n)
            await self._reference.claim_and_complete(
                await self._new_queue(), n, reference if call >= warm_up else Tally()
            )
        return Cost.of(measured), Cost.of(reference)

    async def _new_queue(self) -> str:
        """Returns a reference queue from which no job has been claimed."""
        self._queues += 1
        name = f"reference-{self._queues}"
        await self._reference.enqueue_many([job(name)] * READY)
        return name


def _with_lane(sql: str, lane: int) -> str:
    """Puts the lane into the id, 38 bits from its end, where a settlement finds it."""
    return sql.replace("to_hex(n)", f"to_hex(n + {lane << 38})")


def show(line: str) -> None:
    print(f"\r{line:60}\r", end="", file=sys.stderr, flush=True)


@asynccontextmanager
async def backlog_bench(dsn: str) -> AsyncIterator[tuple[BacklogBench, "Connection[Record]"]]:
    """Creates two copies of the migrated database, and drops them afterwards."""
    admin = await asyncpg.connect(_database(dsn, "template1"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        for name in ("backlog", "reference"):
            await admin.execute(f"CREATE DATABASE {name} TEMPLATE {urlsplit(dsn).path[1:]}")
            stack.push_async_callback(admin.execute, f"DROP DATABASE {name}")
        size = Size(0, 0)
        bench = BacklogBench(
            *[
                await stack.enter_async_context(policy_bench(_database(dsn, name), size))
                for name in ("backlog", "reference")
            ]
        )
        snapshots = await asyncpg.connect(_database(dsn, "backlog"))
        stack.push_async_callback(snapshots.close)
        yield bench, snapshots


def _database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def measure(dsn: str, backlogs: Sequence[Backlog], options: argparse.Namespace) -> None:
    print(
        f"{'beside 1,000 ready jobs':52}{'claims of':>10}{'buffers':>9}{'against':>9}{'ratio':>7}"
        f"{'ms':>9}{'against':>9}{'ratio':>7}"
    )
    for backlog in backlogs:
        async with backlog_bench(dsn) as (bench, snapshots):
            await bench.fill(backlog, snapshots)
            for n, calls in ((100, options.batches), (1, options.singles)):
                report(backlog.name, n, *await bench.measure(n, calls, options.warm_up))


def report(name: str, n: int, found: Cost, reference: Cost) -> None:
    show("")
    buffers = f"{found.buffers:9.1f}{reference.buffers:9.1f}{found.buffers / reference.buffers:7.2f}"
    print(f"{name:52}{n:10}{buffers}{found.ms:9.2f}{reference.ms:9.2f}{found.ms / reference.ms:7.2f}", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40, help="measured claims of 100")
    parser.add_argument("--singles", type=int, default=100, help="measured claims of 1")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=8,
        help="warm-up claims; Postgres plans a statement five times before it keeps a plan",
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="factor for the sizes below, e.g. 0.01 for a quick run"
    )
    for name, (count, label) in _SIZES.items():
        parser.add_argument(
            f"--{name}", type=int, default=count, help=f"{label} (default {count:,}); 0 leaves the row out"
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
    options = parse_options()
    sizes = {name: int(getattr(options, name) * options.share) for name in _SIZES}
    backlogs = [Backlog(), *(Backlog(**{name: count}) for name, count in sizes.items() if count), Backlog(**sizes)]
    log.configure("warning")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres", options=OPTIONS) as dsn:
            migrations.upgrade(dsn)
            asyncio.run(measure(dsn, backlogs, options))


if __name__ == "__main__":
    main()
