"""A peer as the harness sees it: its driver as a process, its server or database beside, and one Result per run."""

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
from bench.peers.versions import NODE, told
from bench.result import PeerPath, Result

Asked: TypeAlias = dict[str, str | int | float]
HERE = Path(__file__).parent
WARM_SHARE = 0.25
PATIENCE = 180.0  # a driver that waits for a job which is lost shall fail, not hang


@dataclass(frozen=True, slots=True)
class Peak:
    """What a driver measured of itself, and what we saw beside it."""

    jobs: int
    seconds: float
    cpu: float
    cpu_server: float
    cpu_database: float


@dataclass(slots=True)
class Contender:
    """`settings` has a row for each path that this peer can go; its numbers go to the driver and into the table alike."""

    name: str
    protocol: str
    driver: str  # file in node/ or python/
    libraries: tuple[str, ...]
    settings: Mapping[PeerPath, Mapping[str, int]]
    server: Kind | None = None
    rates: dict[PeerPath, float] = field(
        default_factory=dict
    )  # jobs per second of drains, as last seen: the next is sized by it
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
        return await tools.missing(packages, with_node=self._on_node)

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
        peak = await (self._drain(path, seconds) if drains else self._enqueue(path, seconds))
        self.rates[path] = peak.jobs / peak.seconds
        return Result(
            jobs=peak.jobs,
            seconds=peak.seconds,
            cpu_server=peak.cpu_server,
            cpu_database=peak.cpu_database,
            cpu_load=peak.cpu,
            versions=self._versions(),
            settings=", ".join(f"{name} {value}" for name, value in self.settings[path].items() if value) or "defaults",
        )

    async def _enqueue(self, path: PeerPath, seconds: float) -> Peak:
        params = {"batch": 1, **self.settings[path]}
        return await self._timed({"action": "enqueue", "seconds": seconds, "warm": seconds * WARM_SHARE, **params})

    async def _drain(self, path: PeerPath, seconds: float) -> Peak:
        """Fills first, by the bulk call. A vacuum gives the tables what autovacuum would give them in time."""
        params = self.settings[path]
        warm = _hundreds(self.rates[path] * seconds * WARM_SHARE)
        jobs = warm + _hundreds(self.rates[path] * seconds)
        await self._drive({"action": "fill", "jobs": jobs, **params})
        if self.server is None:
            async with postgres.connected(self._dsn) as connection:
                await connection.execute("VACUUM ANALYZE")
        return await self._timed({"action": "drain", "jobs": jobs, "warmJobs": warm, **params})

    async def _timed(self, params: Asked) -> Peak:
        peak = await self._drive(params)
        assert peak is not None, "a timed action tells its figures"
        return peak

    async def _drive(self, params: Asked) -> Peak | None:
        """Runs the driver to its end; fails with what it says on stderr."""
        command = await asyncio.to_thread(self._command, params)
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                peak, said = await asyncio.gather(self._watch(_reader(process.stdout)), _reader(process.stderr).read())
            if await process.wait() != 0:
                raise RuntimeError(f"{self.name}, {params['action']}: {said.decode()[-2000:].strip()}")
            return peak
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _watch(self, lines: asyncio.StreamReader) -> Peak | None:
        """The first line says that timing begins, the second what came out."""
        if not await lines.readline():
            return None
        server, database = self._cpu()
        figures = await lines.readline()
        server_after, database_after = self._cpu()
        return (
            Peak(**json.loads(figures), cpu_server=server_after - server, cpu_database=database_after - database)
            if figures
            else None
        )

    def _cpu(self) -> tuple[float, float]:
        """Of the broker and of Postgres; a peer has one of them."""
        return cpu_of(self._running.pid) if self._running else 0.0, cpu_of(
            self._postmaster
        ) if self._postmaster else 0.0

    def _command(self, params: Asked) -> list[str]:
        at = self._running.port if self._running else self._dsn
        if self._on_node:
            told = {**params, "at": at, "home": str(tools.node_home())}
            return [str(tools.node()), str(HERE / "node" / self.driver), json.dumps(told)]
        return [str(tools.python()), str(HERE / "python" / self.driver), json.dumps({**params, "at": at})]

    def _versions(self) -> str:
        parts = [
            told(*self.libraries),
            f"node {NODE}" if self._on_node else "",
            self.server.version() if self.server else "",
        ]
        return ", ".join(filter(None, parts))


def _reader(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None, "it is a pipe"
    return stream


def _hundreds(jobs: float) -> int:
    return max(1, round(jobs / 100)) * 100
