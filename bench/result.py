"""What a round of a contender gives, and what a contender must offer to take part. Ours, the database alone and peers are all alike."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

# Of peers: enqueue_single, enqueue_bulk, drain_default, drain_tuned, like_single, like_drain.
PeerPath: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Result:
    """One round. CPU in seconds, over the same span as `seconds`; 0.0 where there is no such process."""

    jobs: int
    seconds: float
    cpu_server: float
    cpu_database: float
    cpu_load: float
    versions: str
    settings: str  # one line: concurrency, batch size, prefetch

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


class Peer(Protocol):
    """A contender. In each round the harness calls `start`, then `run` for its paths, then `stop`; `install` once before all."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str:
        """What it speaks, e.g. `Postgres wire protocol`."""

    @property
    def postgres(self) -> bool:
        """Whether it lives in Postgres, and so counts as a Postgres peer among the goals."""

    @property
    def paths(self) -> tuple[PeerPath, ...]: ...

    async def install(self) -> str | None:
        """None, or a sentence why it cannot be had here."""

    async def start(self, dsn: str, workdir: Path) -> None:
        """Makes its schema in the database `dsn` (empty, its own), or starts its server in `workdir` (empty, its own)."""

    async def run(self, path: PeerPath, seconds: float) -> Result:
        """One round of about `seconds`. Raises if anything was refused, lost or left over."""

    async def stop(self) -> None: ...
