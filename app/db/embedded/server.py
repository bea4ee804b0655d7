"""A Postgres of our own: pinned binaries as a child process on a Unix socket, that never outlives us. Knows no job.

The folder holds `owner` (the lock), `postgres.log` and `data/` (the cluster); nothing in it ever needs cleaning by hand.
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
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO
from urllib.parse import quote

from app.db.embedded.binaries import ENVIRONMENT, copy_for_all, find_binaries, major, version_of
from app.db.embedded.lock import AlreadyOwned, EmbeddedError, Ownership
from app.db.embedded.processes import die_with, halt, require_passwd_entry, unprivileged_user
from app.log import log

__all__ = ["AlreadyOwned", "EmbeddedError", "EmbeddedPostgres", "find_binaries"]

OPTIONS = {"shared_buffers": "128MB", "max_connections": "100", "fsync": "on", "cluster_name": "longshore"}
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
PORT = 5432
LONGEST_BASE = 64  # a socket's path may have 103 bytes on macOS, 107 on Linux, and we append 35
LOG_BYTES = 8 * 1024 * 1024
REVIVE_SECONDS = 0.2
OUR_CWD = "/proc/self/cwd"


class EmbeddedPostgres:
    """Start it from a thread that lives as long as the server shall: Linux takes the end of that thread for the parent's death.

    Postgres refuses to run as root. For root it runs as the owner of the folder or, where that is root too, as `nobody`;
    we chown what we create, and change nothing that was there before.
    """

    def __init__(self, data_dir: Path, *, options: Mapping[str, str] = NO_OPTIONS) -> None:
        self.folder = data_dir.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._options = OPTIONS | dict(options)
        self._owned: Ownership | None = None
        self._runtime: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._user: pwd.struct_passwd | None = None

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> str:
        """Block until it accepts connections, however long recovery takes; return its DSN."""
        if not self.data.exists():
            require_passwd_entry()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._owned = Ownership(self.folder)
        try:
            return self._start(self._owned)
        except BaseException:
            self.stop()
            raise

    def exists(self) -> bool:
        """Whether the folder holds a cluster, running or not."""
        return self.data.exists()

    def running_dsn(self) -> str | None:
        """Of the server that another process has started on this folder; None if there is none."""
        with suppress(OSError, IndexError, ValueError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            if self._is_ours(int(lines[0])):
                return _dsn(Path(lines[4]))
        return None

    def revive(self) -> None:
        """From now on, whoever kills the server has it started again by a thread that watches it. Its address stays the same."""
        threading.Thread(target=self._keep_alive, name="embedded postgres", daemon=True).start()

    def _keep_alive(self) -> None:
        while self._process is not None and not self._stopping.is_set():
            self._process.wait()
            if not self._stopping.wait(REVIVE_SECONDS):
                log.warning("embedded postgres ended, starting it again", status=self._process.returncode)
                with suppress(EmbeddedError):  # what the old one leaves behind may still be ending: once more
                    self._await_ready(*self._launch(*self._served_by))
                    log.info("embedded postgres is back")

    def stop(self) -> None:
        """Fast shutdown: sessions end, a checkpoint is written. Give the folder free."""
        self._stopping.set()
        if self._process is not None:
            halt(self._process.pid, gone=lambda: self._process is None or self._process.poll() is not None)
            self._process = None
        if self._runtime is not None:
            shutil.rmtree(self._runtime, ignore_errors=True)
            self._runtime = None
        if self._owned is not None:
            self._owned.give_up()
            self._owned = None

    def _start(self, owned: Ownership) -> str:
        self._user = unprivileged_user(self.data, self.folder)
        self._end_orphan()
        self._sweep(owned.left_behind)
        found = find_binaries()
        version = version_of(found)
        self._runtime, binaries = self._prepare_runtime(found)
        owned.claim(self._runtime)
        if not self.data.exists():
            self._create_cluster(binaries, version)
        self._check_cluster(version)
        self._served_by = (binaries, version)
        self._await_ready(*self._launch(*self._served_by))
        return _dsn(self._sockets)

    # What an earlier owner may have left behind

    def _end_orphan(self) -> None:
        """Where the kernel does not end children with their parent, a killed broker's Postgres still runs: it goes first."""
        pid = self._recorded_pid()
        if pid is not None and self._is_ours(pid):
            halt(pid, gone=lambda: not self._is_ours(pid))

    def _recorded_pid(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):
            return int((self.data / "postmaster.pid").read_text().split()[0])
        return None

    def _is_ours(self, pid: int) -> bool:
        """Whether that process serves this folder: after a reboot the number may be anybody's."""
        if sys.platform == "linux":
            with suppress(OSError):
                return os.path.samefile(f"/proc/{pid}/cwd", self.data)
            return False
        else:  # noqa: RET505 - mypy skips the other platform's branch, not what follows it
            shown = subprocess.run(
                ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
            ).stdout
            return "postgres" in shown and str(self.data) in shown

    def _sweep(self, leftover: Path | None) -> None:
        for half_made in self.folder.glob("data.new-*"):
            _remove(half_made)
        if leftover is not None and leftover.name.startswith("longshore-"):
            _remove(leftover)

    # Where the socket lives, and binaries that the unprivileged user can reach

    @property
    def _sockets(self) -> Path:
        return (self._runtime or self.folder) / "s"

    def _prepare_runtime(self, found: Path) -> tuple[Path, Path]:
        """A short path for the socket; also a copy of the binaries if they lie in, say, root's home, closed to others."""
        copying = not self._may("-x", found / "postgres")
        for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp makes a private folder in it
            if len(os.fsencode(base)) > LONGEST_BASE or not self._may("-x", Path(base)):
                continue
            runtime = self._make_runtime(base)
            binaries = copy_for_all(found, runtime) if copying else found
            if self._may("-x", binaries / "postgres"):
                return runtime, binaries
            shutil.rmtree(runtime)  # no program runs from a noexec mount
        raise EmbeddedError(
            f"{self._user_name} may not run {found}: install Postgres where all users can reach it, or set DATABASE_URL"
        )

    def _make_runtime(self, base: str) -> Path:
        runtime = Path(tempfile.mkdtemp(prefix="longshore-", dir=base))
        if self._user is not None:
            runtime.chmod(0o711)
        (runtime / "s").mkdir(mode=0o700)
        self._hand_over(runtime / "s")
        return runtime

    def _hand_over(self, folder: Path) -> None:
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def _may(self, question: str, path: Path) -> bool:
        """Ask the kernel as that user: mode bits of all parents, groups, ACLs and mount options in one answer."""
        return self._run(["test", question, str(path)], Path("/")).returncode == 0

    # The cluster and its server

    def _create_cluster(self, binaries: Path, version: int) -> None:
        """In a folder beside, renamed when whole: whoever kills us in between leaves nothing half-made in the way."""
        new = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.folder))
        self._hand_over(new)
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if version >= 17 else []
        auth = ["--username=postgres", "--auth-local=trust", "--auth-host=reject"]  # the socket's folder is the guard
        where = self._address(new, version)
        made = self._run(
            [f"{binaries}/initdb", "-D", where, "--encoding=UTF8", "--locale=C", *builtin, *auth, "--data-checksums"],
            new,
        )
        if made.returncode != 0:
            raise EmbeddedError(f"initdb failed: {made.stdout.decode(errors='replace')[-2000:].strip()}")
        new.rename(self.data)
        _sync(self.folder)

    def _check_cluster(self, version: int) -> None:
        made_by = major((self.data / "PG_VERSION").read_text())
        if made_by != version:
            raise EmbeddedError(
                f"{self.data} was made by Postgres {made_by}, the binaries found are Postgres {version}: "
                f"install Postgres {made_by}, or choose another LONGSHORE_DATA_DIR and carry the data over with pg_dump"
            )

    def _address(self, folder: Path, version: int) -> str:
        """Its path or, below a folder closed to the user (root's home), the working directory that root opened for it."""
        if self._may("-x", folder):
            return str(folder)
        if sys.platform == "linux" and version >= 16:  # older ones change back to the working directory by its path
            return OUR_CWD
        raise EmbeddedError(
            f"{self._user_name} cannot reach {folder}, and Postgres {version} refuses to run as root: set LONGSHORE_DATA_DIR"
        )

    def _launch(self, binaries: Path, version: int) -> tuple[subprocess.Popen[bytes], int]:
        """Start it; return it and where its lines begin in the log."""
        fixed = {"listen_addresses": "", "port": str(PORT), "unix_socket_directories": str(self._sockets)}
        settings = [part for name, value in (self._options | fixed).items() for part in ("-c", f"{name}={value}")]
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            begins = log.tell()  # asked before the start: Postgres writes through the same file offset
            self._process = self._spawn(
                [f"{binaries}/postgres", "-D", self._address(self.data, version), *settings], self.data, log
            )
            return self._process, begins

    def _await_ready(self, process: subprocess.Popen[bytes], offset: int) -> None:
        while not self._is_ready(process.pid):
            if process.poll() is not None:
                tail = self.log.read_bytes()[offset:][-2000:].decode(errors="replace").strip()
                raise EmbeddedError(f"Postgres ended with status {process.returncode}; {self.log} ends with:\n{tail}")
            time.sleep(0.02)

    def _is_ready(self, pid: int) -> bool:
        """Postgres writes its status into line 8 of its pid file, which is how pg_ctl knows."""
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
        """As the user, in a session of its own (Ctrl-C is for us: we stop it last), ending when we end."""
        # Postgres takes a stale pid file for a living server if another process has that number by now, unless that number
        # is its grandparent's. We hold the lock and have looked: say it is. Its check of shared memory stays in force.
        stale = {"PG_GRANDPARENT_PID": str(self._recorded_pid() or os.getpid())}
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=ENVIRONMENT | stale,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=self._user and self._user.pw_uid,
            group=self._user and self._user.pw_gid,
            extra_groups=None if self._user is None else [],
            preexec_fn=partial(die_with, os.getpid()) if sys.platform == "linux" else None,
        )


def _dsn(sockets: Path) -> str:
    return f"postgresql://postgres@/postgres?host={quote(str(sockets))}&port={PORT}"


def _remove(folder: Path) -> None:
    """A killed owner's initdb may still be writing there for a moment; what is left after that, the next start removes."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
