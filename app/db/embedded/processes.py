"""Starts the processes of an embedded Postgres as an unprivileged user, and stops them. None of
them outlives the broker."""

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

STOP_SECONDS = 60.0  # for a fast shutdown, and for an immediate one
# Loaded at import, because between fork and exec a library may be called but not loaded.
_LIBC = ctypes.CDLL(None)


def spawn(
    command: list[str],
    cwd: Path,
    output: int | IO[bytes],
    *,
    user: pwd.struct_passwd | None,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Starts a command as `user`. On Linux the kernel stops the process when the broker dies.
    Ctrl-C does not reach it, because it is in a session of its own: the broker stops Postgres
    last."""
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
    """Makes the kernel stop this process when its parent dies. Runs in the child, after the change
    of user, which would undo the setting. Exits if the parent has died before the setting was
    made."""
    set_parent_death_signal = 1
    _LIBC.prctl(set_parent_death_signal, signal.SIGINT)
    if os.getppid() != parent:
        os._exit(1)


def require_passwd_entry() -> None:
    """Raises if the current uid has no passwd entry: initdb looks up the name of its user, and
    fails without one. Call it before anything is created."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedError(
            f"uid {os.geteuid()} has no entry in /etc/passwd, and Postgres's initdb refuses to run without one: "
            "add the user (`useradd`), start as a user that has an entry, or set DATABASE_URL to use another Postgres"
        ) from None


def unprivileged_user(*folders: Path) -> pwd.struct_passwd | None:
    """Chooses the user that runs Postgres if this process is root: the owner of the first folder
    that does not belong to root, or else `nobody`. Returns None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for folder in filter(Path.exists, folders):
        owner = folder.stat().st_uid
        with suppress(KeyError):  # a uid without a name, which initdb needs
            if owner != 0:
                return pwd.getpwuid(owner)
    return pwd.getpwnam("nobody")


def stop_process(pid: int, *, has_ended: Callable[[], bool]) -> None:
    """Stops a Postgres server, and returns when it has stopped. Requests a fast shutdown and, after
    STOP_SECONDS, an immediate one."""
    for shutdown in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + STOP_SECONDS
        with suppress(ProcessLookupError):
            os.kill(pid, shutdown)
        while not has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        if has_ended():
            return
    raise EmbeddedError(f"Postgres (pid {pid}) did not stop")
