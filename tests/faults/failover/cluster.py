"""A primary and its standby. The test can break the link between them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.faults.db.proxy import PORT, Proxy
from tests.faults.failover.server import Server

# The names of the standbys that a commit waits for.
SYNCHRONOUS = {"synchronous_standby_names": "standby"}
ASYNCHRONOUS = {"synchronous_standby_names": ""}


class ReplicationLink:
    """A proxy to the primary, to which the standby connects."""

    def __init__(self, primary: Server) -> None:
        self.folder = primary.account.make_folder(primary.account.folder / f"{primary.name}-link")
        self._file = self.folder / f".s.PGSQL.{PORT}"
        self._hidden = self.folder / "cut"
        self._proxy = Proxy(primary.dsn, self.folder)
        self._file.chmod(0o777)

    def cut(self) -> None:
        if self._file.exists():
            self._file.rename(self._hidden)
        self._proxy.cut()

    def cut_again(self) -> None:
        """Breaks a connection that was being opened during `cut`."""
        self._proxy.cut()

    def restore(self) -> None:
        self._hidden.rename(self._file)

    def close(self) -> None:
        self._proxy.close()


class Pair:
    """A primary, its standby, and a connection to each."""

    def __init__(self, primary: Server, standby: Server, link: ReplicationLink, loop: Loop) -> None:
        self.primary = primary
        self.standby = standby
        self._link = link
        self._loop = loop
        self.on_primary = primary.open(loop)
        self.on_standby = standby.open(loop)

    @property
    def dsn(self) -> str:
        """Names both hosts, the primary first. The client looks for the one that accepts writes."""
        hosts = f"{self.primary.sockets},{self.standby.sockets}"
        return f"postgresql://postgres@/postgres?host={hosts}&port={PORT},{PORT}&target_session_attrs=primary"

    def is_streaming(self) -> bool:
        return self._count_links("streaming") == 1

    def break_link(self) -> None:
        """Returns when the primary has noticed."""
        self._link.cut()
        wait_until(self._is_broken)

    def _is_broken(self) -> bool:
        self._link.cut_again()
        return self._count_links("%") == 0

    def _count_links(self, state: str) -> int:
        return int(self.on_primary.value("SELECT count(*) FROM pg_stat_replication WHERE state LIKE $1", state))

    def restore_link(self) -> None:
        self._link.restore()
        wait_until(self.is_streaming)

    def wait_for_replay(self) -> None:
        """Waits until the standby has everything that is committed now."""
        position = self.on_primary.value("SELECT pg_current_wal_lsn()::text")
        wait_until(lambda: self.on_standby.value("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position))

    def waiting_pids(self) -> list[int]:
        """The pids of the primary's backends that wait for the standby."""
        return [
            row["pid"] for row in self.on_primary.rows("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        ]

    def fail_over(self) -> TestDatabase:
        """Kills the primary and promotes the standby."""
        self._link.cut()
        self.primary.kill()
        self.standby.promote(self._loop)
        return self.on_standby


@contextmanager
def start_pair(template: Server, loop: Loop, options: dict[str, str]) -> Iterator[Pair]:
    primary, standby = template.copy("a"), template.copy("b")
    with ExitStack() as stack:
        stack.callback(primary.stop)
        primary.start(options)
        link = ReplicationLink(primary)
        stack.callback(link.close)
        stack.callback(standby.stop)
        standby.create_signal_file("standby.signal")
        # Once promoted, it has no standby itself and must not wait for one.
        standby.start(
            ASYNCHRONOUS | {"primary_conninfo": _conninfo(link.folder), "wal_retrieve_retry_interval": "100ms"}
        )
        servers = Pair(primary, standby, link, loop)
        wait_until(servers.is_streaming)
        yield servers


def _conninfo(folder: Path) -> str:
    return f"host={folder} port={PORT} user=postgres application_name=standby"
