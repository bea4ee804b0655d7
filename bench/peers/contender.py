"""A peer as the benchmark sees it: its driver is a process, its server or database runs beside it,
one Result per run.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bench import postgres
from bench.machine import cpu_of
from bench.peers import tools
from bench.peers.servers import Kind, Server
from bench.peers.versions import NODE, describe
from bench.result import PeerPath, Result

Params: TypeAlias = dict[str, str | int | float]
HERE = Path(__file__).parent
WARM_SHARE = 0.25
TIMEOUT_SECONDS = 180.0  # a driver that waits for a lost job must fail, not hang


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a driver measured of itself, and the CPU of the server and the database in the same span."""

    jobs: int
    seconds: float
    cpu: float
    cpu_server: float
    cpu_database: float


@dataclass(slots=True)
class Contender:
    """`settings` has an entry for each path of the peer; its numbers are passed to the driver and
    shown in the table.
    """

    name: str
    protocol: str
    driver: str  # file in node/ or python/
    libraries: tuple[str, ...]
    settings: Mapping[PeerPath, Mapping[str, int]]
    server: Kind | None = None
    rates: dict[PeerPath, float] = field(
        default_factory=dict
    )  # jobs per second of the last drains: they size the next ones
    _dsn: str = ""
    _postmaster: int | None = None
    _running: Server | None = None

    @property
    def postgres(self) -> bool:
        return self.server is None

    @property
    def paths(self) -> tuple[PeerPath, ...]:
        return tuple(self.settings)

    @property
    def _on_node(self) -> bool:
        return self.driver.endswith(".mjs")

    async def install(self) -> str | None:
        packages = (self.server.package,) if self.server and self.server.package else ()
        return await tools.install(packages, with_node=self._on_node)

    async def start(self, dsn: str, workdir: Path) -> None:
        if self.server is None:
            self._dsn, self._postmaster = dsn, await postgres.postmaster(dsn)
        else:
            self._running = Server(self.server, workdir)
            await self._running.start()
        await self._drive({"action": "prepare"})

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.stop()
        self._running = self._postmaster = None

    async def run(self, path: PeerPath, seconds: float) -> Result:
        drains = path.endswith(("default", "tuned", "drain"))
        measurement = await (self._drain(path, seconds) if drains else self._enqueue(path, seconds))
        self.rates[path] = measurement.jobs / measurement.seconds
        return Result(
            jobs=measurement.jobs,
            seconds=measurement.seconds,
            cpu_server=measurement.cpu_server,
            cpu_database=measurement.cpu_database,
            cpu_load=measurement.cpu,
            versions=self._versions(),
            settings=", ".join(f"{name} {value}" for name, value in self.settings[path].items() if value) or "defaults",
        )

    async def _enqueue(self, path: PeerPath, seconds: float) -> Measurement:
        params = {"batch": 1, **self.settings[path]}
        return await self._timed({"action": "enqueue", "seconds": seconds, "warm": seconds * WARM_SHARE, **params})

    async def _drain(self, path: PeerPath, seconds: float) -> Measurement:
        """Fills first, with the bulk call. Then vacuums, as autovacuum would have done in time."""
        params = self.settings[path]
        warm = _hundreds(self.rates[path] * seconds * WARM_SHARE)
        jobs = warm + _hundreds(self.rates[path] * seconds)
        await self._drive({"action": "fill", "jobs": jobs, **params})
        if self.server is None:
            async with postgres.connected(self._dsn) as connection:
                await connection.execute("VACUUM ANALYZE")
        return await self._timed({"action": "drain", "jobs": jobs, "warmJobs": warm, **params})

    async def _timed(self, params: Params) -> Measurement:
        measurement = await self._drive(params)
        assert measurement is not None, "a timed action prints its figures"
        return measurement

    async def _drive(self, params: Params) -> Measurement | None:
        """Runs the driver to its end; fails with its error output."""
        command = await asyncio.to_thread(self._command, params)
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                measurement, errors = await asyncio.gather(
                    self._watch(_reader(process.stdout)), _reader(process.stderr).read()
                )
            if await process.wait() != 0:
                raise RuntimeError(f"{self.name}, {params['action']}: {errors.decode()[-2000:].strip()}")
            return measurement
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _watch(self, lines: asyncio.StreamReader) -> Measurement | None:
        """The first line says that timing begins, the second has the figures."""
        if not await lines.readline():
            return None
        server, database = self._cpu()
        figures = await lines.readline()
        server_after, database_after = self._cpu()
        return (
            Measurement(**json.loads(figures), cpu_server=server_after - server, cpu_database=database_after - database)
            if figures
            else None
        )

    def _cpu(self) -> tuple[float, float]:
        """CPU of the broker and of Postgres; a peer has one of them."""
        return cpu_of(self._running.pid) if self._running else 0.0, cpu_of(
            self._postmaster
        ) if self._postmaster else 0.0

    def _command(self, params: Params) -> list[str]:
        address = self._running.port if self._running else self._dsn
        if self._on_node:
            driver_params = {**params, "address": address, "home": str(tools.node_home())}
            return [str(tools.node()), str(HERE / "node" / self.driver), json.dumps(driver_params)]
        return [str(tools.python()), str(HERE / "python" / self.driver), json.dumps({**params, "address": address})]

    def _versions(self) -> str:
        parts = [
            describe(*self.libraries),
            f"node {NODE}" if self._on_node else "",
            self.server.version() if self.server else "",
        ]
        return ", ".join(filter(None, parts))


def _reader(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None, "the stream is a pipe"
    return stream


def _hundreds(jobs: float) -> int:
    return max(1, round(jobs / 100)) * 100
