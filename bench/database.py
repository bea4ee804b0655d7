"""The limit: pgbench runs the same statements on the same tables, with nothing in front of the database."""

import asyncio
import re
import resource
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from app.db.embedded.server import find_binaries
from bench import postgres, statements
from bench.brokers import LoadFailed
from bench.cost import PAYLOAD
from bench.machine import cpu_of
from bench.ours import EMPTY, FOUND
from bench.result import Result

DRAINERS, DRAINED = 8, 100
PACE = 30_000  # jobs that a drain inserts for each second that it should take
_PROCESSED = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
_RATE = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)


@dataclass
class Database:
    """pgbench in prepared mode, which keeps one plan per statement and connection, as the broker does."""

    name: str = "database"
    protocol: str = "Postgres, by pgbench"
    postgres: bool = False
    paths: tuple[str, ...] = ("insert_1", "enqueue_1000", "claim_100_settle_100")
    _dsn: str = field(default="", init=False)
    _folder: Path = field(default=Path(), init=False)
    _versions: str = field(default="", init=False)
    _postmaster: int = field(default=0, init=False)

    async def install(self) -> str | None:
        return None if (find_binaries() / "pgbench").exists() else "the Postgres binaries in use come without pgbench"

    async def start(self, dsn: str, workdir: Path) -> None:
        self._dsn, self._folder = dsn, workdir
        self._versions, self._postmaster = await postgres.version(dsn), await postgres.postmaster(dsn)
        await postgres.migrate(dsn)

    async def run(self, path: str, seconds: float) -> Result:
        async with postgres.connected(self._dsn) as connection:
            await connection.execute(EMPTY)
        if path == "insert_1":
            return await self._insert(statements.INSERT, clients=32, jobs=1, warm=100, seconds=seconds)
        if path == "enqueue_1000":
            return await self._insert(await statements.enqueue(1000), clients=8, jobs=1000, warm=2, seconds=seconds)
        return await self._drain(seconds)

    async def stop(self) -> None:
        """Does nothing: no process runs between rounds."""

    async def _insert(self, script: str, *, clients: int, jobs: int, warm: int, seconds: float) -> Result:
        warm_up = await self._pgbench(script, clients, jobs, "-t", str(warm))
        result = await self._pgbench(script, clients, jobs, "-T", str(max(1, round(seconds))))
        await self._check(warm_up.jobs + result.jobs, 0)
        return result

    async def _drain(self, seconds: float) -> Result:
        """Runs exactly as many transactions as claim and complete all jobs."""
        script = await statements.claim_and_complete(DRAINED)
        transactions = max(1, round(PACE * seconds / DRAINERS / DRAINED))
        warm = max(1, transactions // 10)
        total = (transactions + warm) * DRAINERS * DRAINED
        async with postgres.connected(self._dsn) as connection:
            await connection.execute(statements.FILL, total, PAYLOAD)
            await connection.execute("VACUUM ANALYZE jobs")
        await self._pgbench(script, DRAINERS, DRAINED, "-t", str(warm))
        result = await self._pgbench(script, DRAINERS, DRAINED, "-t", str(transactions))
        await self._check(0, total)
        return result

    async def _pgbench(self, script: str, clients: int, jobs: int, *options: str) -> Result:
        file = self._folder / "script.sql"
        file.write_text(script)
        used, load = cpu_of(self._postmaster), _cpu_of_children()
        output = await self._run_pgbench(
            [
                "-n",
                "-M",
                "prepared",
                "-c",
                str(clients),
                "-j",
                "2",
                *options,
                "-D",
                f"payload={PAYLOAD}",
                "-f",
                str(file),
            ]
        )
        done, rate = int(_find(_PROCESSED, output)), float(_find(_RATE, output))
        if int(_find(_FAILED, output)):
            raise LoadFailed(f"pgbench: some transactions failed\n{output}")
        settings = f"{clients} clients, {jobs} per statement, -M prepared"
        database = cpu_of(self._postmaster) - used
        return Result(done * jobs, done / rate, 0.0, database, _cpu_of_children() - load, self._versions, settings)

    async def _run_pgbench(self, options: list[str]) -> str:
        process = await asyncio.create_subprocess_exec(
            str(find_binaries() / "pgbench"), *options, self._dsn, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise LoadFailed(f"pgbench failed: {output.decode(errors='replace')[-2000:]}")
        return output.decode()

    async def _check(self, live: int, completed: int) -> None:
        async with postgres.connected(self._dsn) as connection:
            found = await connection.fetchrow(FOUND)
        if found is None or tuple(found) != (live, completed):
            raise LoadFailed(f"database: expected (live, completed) {(live, completed)}, found {found}")


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _find(pattern: re.Pattern[str], output: str) -> str:
    match = pattern.search(output)
    if match is None:
        raise LoadFailed(f"pgbench did not print {pattern.pattern}:\n{output[-2000:]}")
    return match[1]
