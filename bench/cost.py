"""Measures what a job costs the database, with and without a backlog.

WAL bytes per enqueue, claim, completion and whole life, and buffers per claimed job. It runs the
product's own statements through its store functions, on a separate Postgres with durable settings.
"""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from asyncpg import Record

from app.db import migrations
from app.db.embedded.server import EmbeddedPostgres
from app.db.lanes import JobIdGenerator
from app.db.pool import Database, Executor
from app.jobs import store as jobs
from app.jobs.rows import ClaimedRow, NewJob
from app.leases import store as leases
from app.leases.rows import ClaimParams, LanePolicy
from app.metrics import Metrics
from app.settings import Settings

LANE = 256
BATCH = 100
PAYLOAD = json.dumps({"text": "x" * 188})  # 200 bytes of JSON
# No checkpoint and no autovacuum during a measurement: their share depends on settings and load, not on
# the statements.
OPTIONS = {"max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off", "shared_buffers": "512MB"}
# Ready jobs get one ready span for each hundred, as if they had been enqueued in batches.
INSERT_WAITING = """
WITH added AS (
    INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
    SELECT $1, ($2 || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, $3, $4, 0, 5, 'bench', $5
    FROM generate_series($6::int, $7::int) AS n
    RETURNING id, state
)
INSERT INTO ready_spans (lane, priority, first_id, last_id)
SELECT $1, 0, (array_agg(id ORDER BY id))[1], (array_agg(id ORDER BY id DESC))[1]
FROM (SELECT id, (row_number() OVER (ORDER BY id) - 1) / 100 AS batch FROM added WHERE state = 'ready') AS ready
GROUP BY batch
"""
INSERT_FINISHED = """
INSERT INTO finished_jobs (lane, id, state, finished_at, keep_until, archive, attempt, crashes, run_at, deliveries,
    priority, max_attempts, replay_count, job_type, payload)
SELECT $1, ($2 || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, $3, $4, $4, false, 1, 0, $4, 1,
    0, 5, 0, 'bench', $5
FROM generate_series($6::int, $7::int) AS n
"""


def claim_params() -> ClaimParams:
    """Returns the parameters of a claim, with a secret of its own."""
    return ClaimParams(
        worker_id="worker-1",
        secret=secrets.token_hex(16),
        lease_seconds=None,
        default_lease_seconds=60,
        max_bytes=8 * 1024 * 1024,
        allow_one_oversized=True,
        job_types=None,
    )


class BufferCounter:
    """Runs statements under EXPLAIN ANALYZE and adds up the buffers they touch."""

    def __init__(self, db: Executor) -> None:
        self._db = db
        self.buffers = 0

    async def rows(self, sql: str, *args: object) -> list[Record]:
        plan = json.loads(await self._db.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args))[0]["Plan"]
        # The scan of the function includes the statements in it.
        self.buffers += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return []

    async def row(self, sql: str, *args: object) -> Record | None:
        raise NotImplementedError

    async def value(self, sql: str, *args: object) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Cost:
    """WAL bytes per job, and the number of full-page images among them."""

    enqueue: float
    claim: float
    complete: float
    images: int

    @property
    def life(self) -> float:
        return self.enqueue + self.claim + self.complete


class Bench:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._job_ids = JobIdGenerator()

    async def enqueue(self, batches: int) -> None:
        for _ in range(batches):
            await jobs.enqueue(self._db, LANE, [self._new() for _ in range(BATCH)])

    def _new(self) -> NewJob:
        return NewJob(
            id=self._job_ids.generate(LANE, datetime.now(UTC)),
            state="ready",
            reason=None,
            run_at=datetime.now(UTC),
            priority=0,
            max_attempts=5,
            job_type="send_mail",
            group_key=None,
            lease_seconds=None,
            retry=None,
            tags=None,
            metadata=None,
            traceparent=None,
            tracestate=None,
            replayed_from=None,
            payload=PAYLOAD,
        )

    async def claim(self, batches: int) -> list[ClaimedRow]:
        rows: list[ClaimedRow] = []
        for _ in range(batches):
            rows += await leases.claim(self._db, LANE, BATCH, claim_params(), LanePolicy(), datetime.now(UTC))
        assert len(rows) == batches * BATCH
        return rows

    async def complete(self, rows: Sequence[ClaimedRow]) -> None:
        now = datetime.now(UTC)
        for first in range(0, len(rows), BATCH):
            held = rows[first : first + BATCH]
            done = await leases.complete(
                self._db,
                LANE,
                ids=[row.id for row in held],
                tokens=[row.lease_token for row in held],
                results=[None] * len(held),
                now=now,
                keep_until=now + timedelta(days=7),
                archive=False,
            )
            assert len(done) == len(held)

    async def wal(self, work: Awaitable[object]) -> float:
        before = await self._db.value("SELECT pg_current_wal_insert_lsn()")
        await work
        return float(await self._db.value("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", before))

    async def life(self, batches: int) -> Cost:
        held: list[ClaimedRow] = []

        async def claim() -> None:
            held.extend(await self.claim(batches))

        before = await self.full_pages()
        enqueue, claimed, complete = (
            await self.wal(self.enqueue(batches)),
            await self.wal(claim()),
            await self.wal(self.complete(held)),
        )
        total = batches * BATCH
        return Cost(enqueue / total, claimed / total, complete / total, await self.full_pages() - before)

    async def claim_buffers(self, batches: int) -> float:
        await self.enqueue(batches)
        counter = BufferCounter(self._db)
        for _ in range(batches):
            await leases.claim(counter, LANE, BATCH, claim_params(), LanePolicy(), datetime.now(UTC))
        return counter.buffers / (batches * BATCH)

    async def full_pages(self) -> int:
        await self._db.value("SELECT pg_stat_force_next_flush()")
        return int(await self._db.value("SELECT wal_fpi FROM pg_stat_wal"))

    async def fill(self, sql: str, count: int, prefix: str, state: str, at: datetime) -> None:
        for first in range(1, count + 1, 50_000):
            show(f"{state}: {first - 1:,} of {count:,}")
            last = min(first + 49_999, count)
            await self._db.rows(sql, LANE, prefix, state, at, PAYLOAD, first, last)


def show(line: str) -> None:
    print(f"\r{line:40}\r", end="", file=sys.stderr, flush=True)


async def measure(dsn: str, options: argparse.Namespace) -> None:
    db = Database(dsn, Settings.model_construct(), Metrics())
    await db.open()
    bench = Bench(db)
    show("warming up")
    await db.rows("CHECKPOINT")
    await bench.life(options.batches)
    show("measuring")
    alone = await bench.life(options.batches), await bench.claim_buffers(10)
    await fill_backlog(bench, options)
    await db.rows("ANALYZE")
    behind = await bench.life(options.batches), await bench.claim_buffers(10)
    show("")
    report(options, await db.value("SHOW server_version"), alone, behind)
    await db.close()


async def fill_backlog(bench: Bench, options: argparse.Namespace) -> None:
    later = datetime.now(UTC) + timedelta(days=7)
    await bench.fill(INSERT_WAITING, options.ready, "00000003", "ready", datetime.now(UTC))
    await bench.fill(INSERT_WAITING, options.future, "00000002", "scheduled", later)
    await bench.fill(INSERT_FINISHED, options.finished, "00000001", "completed", later)


def report(options: argparse.Namespace, version: str, alone: tuple[Cost, float], behind: tuple[Cost, float]) -> None:
    backlog = f"{options.ready:,} ready, {options.future:,} future, {options.finished:,} finished"
    print(
        f"Postgres {version}, {len(PAYLOAD)}-byte payload, batches of {BATCH}, "
        f"{options.batches * BATCH:,} jobs measured"
    )
    print(f"{'per job':28}{'empty':>10}{'backlog':>10}   (backlog: {backlog})")
    for name in ("enqueue", "claim", "complete", "life"):
        print(f"{f'WAL bytes, {name}':28}{getattr(alone[0], name):10.0f}{getattr(behind[0], name):10.0f}")
    print(f"{'buffers, claim':28}{alone[1]:10.1f}{behind[1]:10.1f}")
    print(
        f"{'full-page images, in all':28}{alone[0].images:10}{behind[0].images:10}"
        "   (the last checkpoint was before the warm-up)"
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100, help="batches of 100 jobs that are measured")
    parser.add_argument("--ready", type=int, default=100_000, help="ready jobs in the backlog")
    parser.add_argument("--future", type=int, default=100_000, help="scheduled jobs in the backlog")
    parser.add_argument("--finished", type=int, default=100_000, help="finished jobs in the history")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres", options=OPTIONS) as dsn:
            migrations.upgrade(dsn)
            asyncio.run(measure(dsn, options))


if __name__ == "__main__":
    main()
