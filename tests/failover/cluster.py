"""A primary and its standby, with the link between them in the test's hands."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.db.proxy import PORT, Proxy
from tests.failover.server import Server

# Names of the standbys whose word a commit waits for.
SYNCHRONOUS = {"synchronous_standby_names": "standby"}
ASYNCHRONOUS = {"synchronous_standby_names": ""}


class ReplicationLink:
    """What the standby takes for the primary."""

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
        """For a connection that was just being made."""
        self._proxy.cut()

    def mend(self) -> None:
        self._hidden.rename(self._file)

    def close(self) -> None:
        self._proxy.close()


class Pair:
    def __init__(self, primary: Server, standby: Server, link: ReplicationLink, loop: Loop) -> None:
        self.primary = primary
        self.standby = standby
        self._link = link
        self._loop = loop
        self.on_primary = primary.open(loop)
        self.on_standby = standby.open(loop)

    @property
    def dsn(self) -> str:
        """Of both, the primary first: the client looks for the one that takes writes."""
        hosts = f"{self.primary.sockets},{self.standby.sockets}"
        return f"postgresql://postgres@/postgres?host={hosts}&port={PORT},{PORT}&target_session_attrs=primary"

    def streams(self) -> bool:
        return self._links("streaming") == 1

    def break_link(self) -> None:
        """Returns when the primary knows."""
        self._link.cut()
        wait_until(self._is_cut)

    def _is_cut(self) -> bool:
        self._link.cut_again()
        return self._links("%") == 0

    def _links(self, state: str) -> int:
        return int(self.on_primary.value("SELECT count(*) FROM pg_stat_replication WHERE state LIKE $1", state))

    def restore_link(self) -> None:
        self._link.mend()
        wait_until(self.streams)

    def wait_for_replay(self) -> None:
        """Returns when the standby has everything that is committed now."""
        here = self.on_primary.value("SELECT pg_current_wal_lsn()::text")
        wait_until(lambda: self.on_standby.value("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", here))

    def waiting(self) -> list[int]:
        """Processes of the primary that wait for the standby's word."""
        return [
            row["pid"] for row in self.on_primary.rows("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        ]

    def fail_over(self) -> TestDatabase:
        """The primary is gone from one moment to the next, the standby takes its place."""
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
        standby.mark("standby.signal")
        # Once promoted it has no standby itself, and waits for none.
        standby.start(
            ASYNCHRONOUS | {"primary_conninfo": _conninfo(link.folder), "wal_retrieve_retry_interval": "100ms"}
        )
        made = Pair(primary, standby, link, loop)
        wait_until(made.streams)
        yield made


def _conninfo(folder: Path) -> str:
    return f"host={folder} port={PORT} user=postgres application_name=standby"
