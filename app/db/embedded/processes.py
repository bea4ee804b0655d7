"""Starts the processes of an embedded Postgres as an unprivileged user, and stops them. On Linux
none of them outlives the broker, even if the broker is killed."""

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from app.db.embedded.lock import EmbeddedError

STOP_SECONDS = 60.0  # for a fast shutdown, and again for an immediate one
# Loaded at import, because between fork and exec it is safe to call a library, but not to load one.
_LIBC = ctypes.CDLL(None)


def spawn(
    command: list[str],
    cwd: Path,
    output: int | IO[bytes],
    *,
    user: pwd.struct_passwd | None,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Starts a command as `user`, or as the current user if `user` is None.

    On Linux the kernel stops the process when the broker dies. The process has a session of its
    own, so that Ctrl-C does not reach it: the broker stops Postgres last.
    """
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=user and user.pw_uid,
        group=user and user.pw_gid,
        extra_groups=None if user is None else [],
        preexec_fn=partial(die_with_parent, os.getpid()) if sys.platform == "linux" else None,
    )


def die_with_parent(parent: int) -> None:
    """Makes the kernel stop this process when its parent dies.

    Runs in the child process, after the change of user, because that change would undo the setting.
    Exits if the parent died before the setting was made.
    """
    set_parent_death_signal = 1
    _LIBC.prctl(set_parent_death_signal, signal.SIGINT)
    if os.getppid() != parent:
        os._exit(1)


def require_passwd_entry() -> None:
    """Raises EmbeddedError if the current uid has no entry in /etc/passwd, because initdb would
    fail: it looks up the name of its user. Call this before anything is created."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedError(
            f"uid {os.geteuid()} has no entry in /etc/passwd, and Postgres's initdb refuses to run without one: "
            "add the user (`useradd`), start as a user that has an entry, or set DATABASE_URL to use another Postgres"
        ) from None


def unprivileged_user(*folders: Path) -> pwd.struct_passwd | None:
    """Chooses the user that runs Postgres if this process is root: the owner of the first of the
    folders that does not belong to root, or else `nobody`. Returns None if this process is not
    root."""
    if os.geteuid() != 0:
        return None
    for folder in filter(Path.exists, folders):
        owner = folder.stat().st_uid
        with suppress(KeyError):  # the uid has no name, and initdb needs one
            if owner != 0:
                return pwd.getpwuid(owner)
    return pwd.getpwnam("nobody")


def stop_process(pid: int, *, has_ended: Callable[[], bool]) -> None:
    """Stops a Postgres server, and returns when it has stopped. Requests a fast shutdown. If the
    server is still running after STOP_SECONDS, requests an immediate shutdown."""
    for shutdown in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + STOP_SECONDS
        with suppress(ProcessLookupError):
            os.kill(pid, shutdown)
        while not has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        if has_ended():
            return
    raise EmbeddedError(f"Postgres (pid {pid}) did not stop")


def serves_folder(pid: int, data: Path) -> bool:
    """Whether the process with this pid is the Postgres server of the cluster in `data`.

    After a reboot another process may have the pid.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            return os.path.samefile(f"/proc/{pid}/cwd", data)
        return False
    else:  # noqa: RET505 - mypy skips a branch for another platform, but not code after the `if`
        command = subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        return "postgres" in command and str(data) in command
