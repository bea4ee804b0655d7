"""Longshore as a contender: real broker processes, a load process against them, and a check of the
tables afterwards.
"""

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import postgres
from bench.brokers import Brokers, LoadFailed, load
from bench.load.order import Figures, Order
from bench.result import Result

EMPTY = """
TRUNCATE jobs, finished_jobs, dead_letters, deduplication_keys, finished_parents, stat_deltas, stat_totals, stat_rates,
    stat_durations
"""
FOUND = """
SELECT (SELECT count(*) FROM jobs) AS live,
    (SELECT count(*) FROM finished_jobs WHERE state = 'completed') AS completed
"""
FILLERS = 4
LIBRARIES = ("uvicorn", "httptools", "uvloop", "fastapi", "asyncpg", "msgspec")


class Workload(NamedTuple):
    """How a path is driven.

    `pace`: jobs per second by which the first drain is sized, later ones by the measured rate; 0:
    no drain.
    """

    kind: str
    connections: int
    batch: int
    pace: int = 0

    @property
    def description(self) -> str:
        return f"{self.connections} connections, {self.batch} per request"


WORKLOADS = {
    "enqueue_1": Workload("enqueue", 64, 1),
    "enqueue_100": Workload("enqueue", 8, 100),
    "enqueue_1000": Workload("enqueue", 8, 1000),
    "enqueue_1000_mixed": Workload("enqueue_mixed", 8, 1000),
    "claim_1_complete_1": Workload("singles", 64, 1, 1_000),
    "claim_1_carrying": Workload("carried", 64, 1, 1_500),
    "claim_100_settle_100": Workload("batches", 8, 100, 10_000),
    "claim_100_carrying": Workload("carried", 8, 100, 10_000),
    "like_single": Workload("like_single", 32, 1),
    "like_drain": Workload("like_drain", 4, 100, 10_000),
}


@dataclass
class Longshore:
    """`processes` brokers on one database. With `keys`, every request carries an API key, which is checked."""

    name: str
    processes: int = 1
    keys: bool = False
    paths: tuple[str, ...] = tuple(WORKLOADS)
    warm_up: float = 1.0
    protocol: str = "HTTP/1.1, JSON"
    postgres: bool = True
    _dsn: str = field(default="", init=False)
    _brokers: Brokers | None = field(default=None, init=False)
    _key: str | None = field(default=None, init=False)
    _versions: str = field(default="", init=False)
    _paces: dict[str, float] = field(default_factory=dict, init=False)

    async def install(self) -> str | None:
        return None

    async def start(self, dsn: str, workdir: Path) -> None:
        self._dsn = dsn
        self._versions = f"{await postgres.version(dsn)}, " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
        brokers = self._brokers = Brokers(dsn)
        await postgres.migrate(dsn)
        if self.keys:
            self._key = brokers.command("keys", "create", "--name", "bench", "--scope", "enqueue", "--scope", "work")
        brokers.start(self.processes)

    async def run(self, path: str, seconds: float) -> Result:
        workload = WORKLOADS[path]
        order = await self._order(workload, seconds, round(self._paces.get(path, workload.pace) * seconds))
        await self._set_up(order)
        figures = await load(order)
        await self._check(workload, figures)
        result = _result(figures, self._versions, self._describe(workload))
        if workload.pace:
            self._paces[path] = result.rate
        return result

    async def stop(self) -> None:
        if self._brokers is not None:
            self._brokers.stop()

    def _describe(self, workload: Workload) -> str:
        return f"server processes: {self.processes}, {workload.description}{', API key' if self.keys else ''}"

    async def _set_up(self, order: Order) -> None:
        """Empties the tables, then fills in the jobs of a drain.

        Vacuums them, as autovacuum would have done in time.
        """
        async with postgres.connected(self._dsn) as connection:
            await connection.execute(EMPTY)
            if order.jobs:
                await load(msgspec.structs.replace(order, kind="fill", connections=FILLERS))
                await connection.execute("VACUUM ANALYZE jobs")

    async def _order(self, workload: Workload, seconds: float, jobs: int) -> Order:
        assert self._brokers is not None
        return Order(
            kind=workload.kind,
            ports=self._brokers.ports,
            connections=workload.connections,
            batch=workload.batch,
            seconds=seconds,
            warm_up=self.warm_up,
            jobs=jobs,
            key=self._key,
            server=self._brokers.pids,
            database=[await postgres.postmaster(self._dsn)],
        )

    async def _check(self, workload: Workload, figures: Figures) -> None:
        """Every acknowledged job is stored, and no other; after a drain all are completed."""
        expected = (0, figures["total"]) if workload.pace else (figures["total"], 0)
        async with postgres.connected(self._dsn) as connection:
            found = await connection.fetchrow(FOUND)
        if found is None or tuple(found) != expected:
            raise LoadFailed(f"{workload.kind}: expected (live, completed) {expected}, found {found}")


def _result(figures: Figures, versions: str, settings: str) -> Result:
    return Result(
        jobs=round(figures["jobs"]),
        seconds=figures["seconds"],
        cpu_server=figures["cpu_server"],
        cpu_database=figures["cpu_database"],
        cpu_load=figures["cpu_load"],
        versions=versions,
        settings=settings,
    )
