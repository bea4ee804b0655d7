"""The result of a round, and the interface of a contender: Longshore, the database alone, and the peers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

# Paths of peers: enqueue_single, enqueue_bulk, drain_default, drain_tuned, like_single, like_drain.
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
    """A contender. `install` is called once. In each round come `start`, then `run` for its paths, then `stop`."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str:
        """Its protocol, e.g. `Postgres wire protocol`."""

    @property
    def postgres(self) -> bool:
        """Whether it stores jobs in Postgres, and so is a Postgres peer in the goals."""

    @property
    def paths(self) -> tuple[PeerPath, ...]: ...

    async def install(self) -> str | None:
        """Returns None, or a sentence why it cannot be installed here."""

    async def start(self, dsn: str, workdir: Path) -> None:
        """Creates its schema in the empty database `dsn`, or starts its server in the empty folder `workdir`."""

    async def run(self, path: PeerPath, seconds: float) -> Result:
        """One round of about `seconds`. Raises if a job was rejected, lost or left over."""

    async def stop(self) -> None: ...
