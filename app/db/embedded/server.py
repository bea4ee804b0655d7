"""Runs an embedded Postgres: a child process that listens on a Unix socket.

The server stops with the broker. If the broker is killed, the kernel stops the server (on Linux),
or the next start stops it (elsewhere).

The data folder contains `owner` (the lock), `postgres.log` and `data/` (the cluster). Each start
removes leftovers of earlier starts, so the folder never needs to be cleaned by hand.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO
from urllib.parse import quote

from app.db.embedded.binaries import ENVIRONMENT, copy_readable_by_all, find_binaries, major, version_of
from app.db.embedded.folders import remove_folder, sync_folder
from app.db.embedded.lock import EmbeddedError, FolderInUse, FolderLock
from app.db.embedded.processes import require_passwd_entry, serves_folder, spawn, stop_process, unprivileged_user
from app.log import log

__all__ = ["EmbeddedError", "EmbeddedPostgres", "FolderInUse", "find_binaries"]

OPTIONS = {"shared_buffers": "128MB", "max_connections": "100", "fsync": "on", "cluster_name": "longshore"}
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
PORT = 5432
MAX_BASE_BYTES = 64  # 35 bytes are appended, and a socket path may have 103 on macOS, 107 on Linux
LOG_BYTES = 8 * 1024 * 1024
RESTART_SECONDS = 0.2
WORKING_DIRECTORY = "/proc/self/cwd"


class EmbeddedPostgres:
    """Runs a Postgres server in one folder. Call `start` in a thread that lives as long as the
    server, because on Linux the kernel stops the server when that thread ends.

    Postgres does not run as root. If the broker is root, Postgres runs as the owner of the folder
    or, if root owns the folder, as `nobody`. This class changes the owner only of folders that it
    has created.
    """

    def __init__(self, data_dir: Path, *, options: Mapping[str, str] = NO_OPTIONS) -> None:
        self.folder = data_dir.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._options = OPTIONS | dict(options)
        self._lock: FolderLock | None = None
        self._temp_folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = threading.Event()
        self._user: pwd.struct_passwd | None = None

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> str:
        """Locks the folder and starts the server. Blocks until the server accepts connections,
        however long recovery takes. Returns the DSN of the server."""
        if not self.data.exists():
            require_passwd_entry()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.folder)
        try:
            return self._start(self._lock)
        except BaseException:
            self.stop()
            raise

    def exists(self) -> bool:
        """Whether the folder contains a cluster, running or not."""
        return self.data.exists()

    def running_dsn(self) -> str | None:
        """Returns the DSN of the server that another process runs in this folder. Returns None if
        no server is running."""
        with suppress(OSError, IndexError, ValueError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            if serves_folder(int(lines[0]), self.data):
                return _dsn(Path(lines[4]))
        return None

    def restart_on_exit(self) -> None:
        """Starts a thread that restarts the server, with the same DSN, whenever the server
        exits."""
        threading.Thread(target=self._restart_forever, name="embedded postgres", daemon=True).start()

    def _restart_forever(self) -> None:
        while self._process is not None and not self._is_stopping.is_set():
            self._process.wait()
            if not self._is_stopping.wait(RESTART_SECONDS):
                log.warning("embedded postgres exited, restarting", status=self._process.returncode)
                # If processes of the old server are still exiting, the start fails and the loop
                # tries again.
                with suppress(EmbeddedError):
                    self._await_ready(*self._launch(*self._binaries))
                    log.info("embedded postgres restarted")

    def stop(self) -> None:
        """Stops the server, which ends its sessions and writes a checkpoint. Then removes the
        temporary folder and unlocks the data folder."""
        self._is_stopping.set()
        if self._process is not None:
            stop_process(self._process.pid, has_ended=lambda: self._process is None or self._process.poll() is not None)
            self._process = None
        if self._temp_folder is not None:
            shutil.rmtree(self._temp_folder, ignore_errors=True)
            self._temp_folder = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _start(self, lock: FolderLock) -> str:
        self._user = unprivileged_user(self.data, self.folder)
        self._stop_orphan()
        self._remove_leftovers(lock.leftover_temp_folder)
        installed = find_binaries()
        version = version_of(installed)
        self._temp_folder, binaries = self._prepare_temp_folder(installed)
        lock.record_temp_folder(self._temp_folder)
        if not self.data.exists():
            self._create_cluster(binaries, version)
        self._check_cluster(version)
        self._binaries = (binaries, version)
        self._await_ready(*self._launch(*self._binaries))
        return _dsn(self._sockets)

    # Leftovers of an earlier owner

    def _stop_orphan(self) -> None:
        """Stops the server of a killed broker, if it is still running. Outside Linux the kernel
        does not stop a process when its parent dies."""
        pid = self._recorded_pid()
        if pid is not None and serves_folder(pid, self.data):
            stop_process(pid, has_ended=lambda: not serves_folder(pid, self.data))

    def _recorded_pid(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):
            return int((self.data / "postmaster.pid").read_text().split()[0])
        return None

    def _remove_leftovers(self, temp_folder: Path | None) -> None:
        for incomplete in self.folder.glob("data.new-*"):
            remove_folder(incomplete)
        if temp_folder is not None and temp_folder.name.startswith("longshore-"):
            remove_folder(temp_folder)

    # The temporary folder: the socket and, if needed, a copy of the binaries

    @property
    def _sockets(self) -> Path:
        return (self._temp_folder or self.folder) / "s"

    def _prepare_temp_folder(self, installed: Path) -> tuple[Path, Path]:
        """Creates a temporary folder with a short path, for the socket. Copies the binaries into it
        if Postgres's user cannot reach them, for example because they are in root's home. Returns
        the temporary folder and the folder of the binaries."""
        needs_copy = not self._user_can("-x", installed / "postgres")
        for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp creates a private folder in it
            if len(os.fsencode(base)) > MAX_BASE_BYTES or not self._user_can("-x", Path(base)):
                continue
            temp_folder = self._create_temp_folder(base)
            binaries = copy_readable_by_all(installed, temp_folder) if needs_copy else installed
            if self._user_can("-x", binaries / "postgres"):
                return temp_folder, binaries
            shutil.rmtree(temp_folder)  # it is on a noexec mount
        raise EmbeddedError(
            f"{self._user_name} may not run {installed}: "
            "install Postgres where all users can reach it, or set DATABASE_URL"
        )

    def _create_temp_folder(self, base: str) -> Path:
        temp_folder = Path(tempfile.mkdtemp(prefix="longshore-", dir=base))
        if self._user is not None:
            temp_folder.chmod(0o711)
        (temp_folder / "s").mkdir(mode=0o700)
        self._chown(temp_folder / "s")
        return temp_folder

    def _chown(self, folder: Path) -> None:
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def _user_can(self, test: str, path: Path) -> bool:
        """Whether Postgres's user can access a path. Runs a command such as `test -x PATH` as that
        user, so that the kernel decides: by the mode bits of all parent folders, groups, ACLs and
        mount options."""
        return self._run(["test", test, str(path)], Path("/")).returncode == 0

    # The cluster and its server

    def _create_cluster(self, binaries: Path, version: int) -> None:
        """Creates the cluster in a new folder, and renames the folder when the cluster is complete.
        So the final path never has an incomplete cluster, even if the broker is killed."""
        new = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.folder))
        self._chown(new)
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if version >= 17 else []
        # No password is needed, because other users cannot enter the folder of the socket.
        auth = ["--username=postgres", "--auth-local=trust", "--auth-host=reject"]
        path = self._reachable_path(new, version)
        initdb = self._run(
            [f"{binaries}/initdb", "-D", path, "--encoding=UTF8", "--locale=C", *builtin, *auth, "--data-checksums"],
            new,
        )
        if initdb.returncode != 0:
            raise EmbeddedError(f"initdb failed: {initdb.stdout.decode(errors='replace')[-2000:].strip()}")
        new.rename(self.data)
        sync_folder(self.folder)

    def _check_cluster(self, version: int) -> None:
        created_by = major((self.data / "PG_VERSION").read_text())
        if created_by != version:
            raise EmbeddedError(
                f"{self.data} was created by Postgres {created_by}, the binaries found are Postgres {version}: "
                f"install Postgres {created_by}, or choose another LONGSHORE_DATA_DIR "
                "and transfer the data with pg_dump"
            )

    def _reachable_path(self, folder: Path, version: int) -> str:
        """Returns a path by which Postgres's user can open the folder. If the user cannot enter a
        parent folder, for example root's home, the path is `/proc/self/cwd`, the working directory
        of the process: root sets this directory to the folder."""
        if self._user_can("-x", folder):
            return str(folder)
        # Versions before 16 return to the working directory by its absolute path, which would fail.
        if sys.platform == "linux" and version >= 16:
            return WORKING_DIRECTORY
        raise EmbeddedError(
            f"{self._user_name} cannot reach {folder}, and Postgres {version} refuses to run as root: "
            "set LONGSHORE_DATA_DIR"
        )

    def _launch(self, binaries: Path, version: int) -> tuple[subprocess.Popen[bytes], int]:
        """Starts the server. Returns its process, and the offset in the log file at which the lines
        of this start begin."""
        fixed = {"listen_addresses": "", "port": str(PORT), "unix_socket_directories": str(self._sockets)}
        settings = [part for name, value in (self._options | fixed).items() for part in ("-c", f"{name}={value}")]
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            offset = log.tell()  # before the start: Postgres writes through the same file offset
            self._process = self._spawn(
                [f"{binaries}/postgres", "-D", self._reachable_path(self.data, version), *settings], self.data, log
            )
            return self._process, offset

    def _await_ready(self, process: subprocess.Popen[bytes], offset: int) -> None:
        while not self._is_ready(process.pid):
            if process.poll() is not None:
                tail = self.log.read_bytes()[offset:][-2000:].decode(errors="replace").strip()
                raise EmbeddedError(f"Postgres ended with status {process.returncode}; {self.log} ends with:\n{tail}")
            time.sleep(0.02)

    def _is_ready(self, pid: int) -> bool:
        """Whether the server accepts connections. Reads line 8 of its pid file, as pg_ctl does."""
        with suppress(OSError, IndexError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(pid) and lines[7].strip() == "ready"
        return False

    # Processes

    @property
    def _user_name(self) -> str:
        return self._user.pw_name if self._user else f"uid {os.geteuid()}"

    def _run(self, command: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
        with self._spawn(command, cwd, subprocess.PIPE) as process:
            output, _ = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, output)

    def _spawn(self, command: list[str], cwd: Path, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        # If another process has the pid of a stale pid file, Postgres takes that process for a
        # running server, unless PG_GRANDPARENT_PID contains the pid. The broker passes the pid,
        # because it holds the lock and has checked that the process is no server of this folder.
        # Postgres still checks the shared memory.
        grandparent = {"PG_GRANDPARENT_PID": str(self._recorded_pid() or os.getpid())}
        return spawn(command, cwd, output, user=self._user, environment=ENVIRONMENT | grandparent)


def _dsn(sockets: Path) -> str:
    return f"postgresql://postgres@/postgres?host={quote(str(sockets))}&port={PORT}"
