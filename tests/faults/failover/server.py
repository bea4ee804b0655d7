"""Postgres servers that tests can kill, restart and use as standbys of each other.

Their addresses stay the same.
"""

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
_numbers = itertools.count(1)  # make names unique
# Without fsync a process may still be killed, because the kernel has its writes. Tests that cut the
# power switch fsync on.
FAST_OPTIONS = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "wal_receiver_timeout": "2s",
}


class ServerEnded(Exception):
    """The server ended before it was ready."""


class Session(TestDatabase):
    """A database whose server may be down for a while."""

    async def _open(self) -> Any:
        return await asyncpg.create_pool(self.dsn, min_size=0, max_size=5)


class Account:
    """The user that runs Postgres, which refuses to run as root.

    If the test is root, this is `nobody`, which then owns all files and can reach the binaries.
    """

    def __init__(self, folder: Path) -> None:
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.folder = folder
        folder.chmod(0o711)
        installed = find_binaries()
        self.binaries = installed if self._can_run(installed) else copy_readable_by_all(installed, folder)

    def make_folder(self, path: Path) -> Path:
        path.mkdir(mode=0o700)
        self.take_ownership(path)
        return path

    def take_ownership(self, path: Path) -> None:
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
        """Runs a program of Postgres and returns its output."""
        process = self.start([self.binaries / program, *arguments], subprocess.PIPE)
        output = process.communicate()[0].decode(errors="replace")
        assert process.returncode == 0, output
        return output

    def _can_run(self, binaries: Path) -> bool:
        return self.start(["test", "-x", str(binaries / "postgres")]).wait() == 0


class Server:
    """A data folder and the address of its server."""

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
        # Small WAL segments: copies are quick, and a segment is soon full.
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
        """Copies a stopped server. The copy is the same cluster, so it can become a standby."""
        copy = Server(self.account, name, data)
        subprocess.run(["cp", "-a", self.data, copy.data], check=True)
        return copy

    def create_signal_file(self, signal_file: str) -> None:
        """Creates an empty signal file, which makes Postgres a standby or starts a recovery."""
        (self.data / signal_file).touch()
        self.account.take_ownership(self.data / signal_file)

    def start(self, options: Mapping[str, str] | None = None) -> None:
        """Starts the server, without options with those of the last start.

        Removes the pid file of a killed server.
        """
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._options = self._options if options is None else FAST_OPTIONS | dict(options)
        fixed = {"listen_addresses": "", "port": str(PORT), "unix_socket_directories": str(self.sockets)}
        settings = [f"--{name}={value}" for name, value in (self._options | fixed).items()]
        with self.log.open("ab") as log:
            self._process = self.account.start([self.account.binaries / "postgres", "-D", self.data, *settings], log)
        wait_until(self._is_ready, 60)

    def _is_ready(self) -> bool:
        if not self.is_running:
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
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kills the server and all its processes with SIGKILL."""
        if self._process is not None and self.is_running:
            pids = [self._process.pid, *children_of(self._process.pid)]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(30)
            wait_until(lambda: not any(map(is_alive, pids)))

    def stop(self) -> None:
        """Fast shutdown, as an operator does it: ends sessions and writes a checkpoint."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)

    def promote(self, loop: Loop) -> None:
        """Makes a standby the primary, on a new timeline. Returns when it is promoted."""
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
