"""Postgres servers of a test that can be killed, restarted and stand by for each other; their addresses stay the same."""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import asyncpg

from app.db.embedded.binaries import ENVIRONMENT, copy_readable_by_all, find_binaries
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase, in_database

PORT = 5432
_numbers = itertools.count(1)  # a name may be used more than once
# A process may be killed without fsync: what it has written is the kernel's. Tests that cut the power switch it on.
FAST_OPTIONS = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "wal_receiver_timeout": "2s",
}


class ServerEnded(Exception):
    """Instead of coming up."""


class Session(TestDatabase):
    """That does not mind when its server is gone for a while."""

    async def _open(self) -> Any:
        return await asyncpg.create_pool(self.dsn, min_size=0, max_size=5)


class Account:
    """Postgres refuses to run as root: then everything is run by, and belongs to, `nobody`, with binaries that he may reach."""

    def __init__(self, folder: Path) -> None:
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.folder = folder
        folder.chmod(0o711)
        found = find_binaries()
        self.binaries = found if self._may_run(found) else copy_readable_by_all(found, folder)

    def make_folder(self, path: Path) -> Path:
        path.mkdir(mode=0o700)
        self.own(path)
        return path

    def own(self, path: Path) -> None:
        if self._user is not None:
            shutil.chown(path, self._user.pw_uid, self._user.pw_gid)

    def start(self, command: Iterable[str | Path], output: int | IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            list(command),
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=self._user and self._user.pw_uid,
            group=self._user and self._user.pw_gid,
            extra_groups=None if self._user is None else [],
        )

    def run(self, program: str, *arguments: str | Path) -> str:
        """One of Postgres' own programs, to its end."""
        process = self.start([self.binaries / program, *arguments], subprocess.PIPE)
        output = process.communicate()[0].decode(errors="replace")
        assert process.returncode == 0, output
        return output

    def _may_run(self, binaries: Path) -> bool:
        return self.start(["test", "-x", str(binaries / "postgres")]).wait() == 0


class Server:
    """A data folder, and where its server listens when it runs."""

    def __init__(self, account: Account, name: str, data: Path | None = None) -> None:
        self.account = account
        self.name = f"{name}{next(_numbers)}"
        self.data = data or account.folder / f"{self.name}-data"
        self.sockets = account.make_folder(account.folder / self.name)
        self.log = account.folder / f"{self.name}.log"
        self.dsn = f"postgresql://postgres@/postgres?host={self.sockets}&port={PORT}"
        self._options: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[TestDatabase] = []

    def create(self) -> None:
        # Small files: copies are quick, and a file of the log is soon full.
        self.account.run(
            "initdb",
            "-D",
            self.data,
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--wal-segsize=1",
            "-k",
            "-N",
        )

    def copy(self, name: str, data: Path | None = None) -> "Server":
        """Of a server that is stopped: the same cluster, which can become its standby."""
        copied = Server(self.account, name, data)
        subprocess.run(["cp", "-a", self.data, copied.data], check=True)
        return copied

    def mark(self, signal_file: str) -> None:
        """How Postgres is told to stand by, or to recover: an empty file with a name."""
        (self.data / signal_file).touch()
        self.account.own(self.data / signal_file)

    def start(self, options: Mapping[str, str] | None = None) -> None:
        """Once more with the options of the last start, if none are given. A file of a server that is no more is not in the way."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._options = self._options if options is None else FAST_OPTIONS | dict(options)
        fixed = {"listen_addresses": "", "port": str(PORT), "unix_socket_directories": str(self.sockets)}
        settings = [f"--{name}={value}" for name, value in (self._options | fixed).items()]
        with self.log.open("ab") as log:
            self._process = self.account.start([self.account.binaries / "postgres", "-D", self.data, *settings], log)
        wait_until(self._is_up, 60)

    def _is_up(self) -> bool:
        if not self.running:
            raise ServerEnded(self.log.read_text()[-2000:])
        with suppress(OSError, IndexError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return (
                self._process is not None
                and lines[0] == str(self._process.pid)
                and lines[7].strip() in ("ready", "standby")
            )
        return False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """-9, the server and all its processes: nobody says goodbye."""
        if self._process is not None and self.running:
            victims = [self._process.pid, *children_of(self._process.pid)]
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            self._process.wait(30)
            wait_until(lambda: not any(map(is_alive, victims)))

    def stop(self) -> None:
        """As an operator does it: sessions are ended, everything is written."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)

    def promote(self, loop: Loop) -> None:
        """A standby becomes a primary, on a timeline of its own. Returns when it has."""
        assert self.open(loop).value("SELECT pg_promote()")

    def open(self, loop: Loop, database: str = "postgres") -> TestDatabase:
        self._sessions.append(Session(in_database(self.dsn, database), loop))
        return self._sessions[-1]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False
