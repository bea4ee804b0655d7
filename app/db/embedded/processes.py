"""Processes of an embedded Postgres: as whom it runs, that it ends with its owner, and how it is ended."""

import ctypes
import os
import pwd
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.db.embedded.lock import EmbeddedError

PATIENCE = 60.0  # for a fast shutdown; then an immediate one
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec only calls are safe


def die_with(parent: int) -> None:
    """Runs in the child, after the change of user, which would undo it. The second line closes the race with a parent's early death."""
    set_parent_death_signal = 1
    _LIBC.prctl(set_parent_death_signal, signal.SIGINT)
    if os.getppid() != parent:
        os._exit(1)


def require_passwd_entry() -> None:
    """Raises if the current uid has no passwd entry: initdb looks up the name of its user and fails without one. Called before anything
    is created."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedError(
            f"uid {os.geteuid()} has no entry in /etc/passwd, and Postgres's initdb refuses to run without one: "
            "add the user (`useradd`), start as a user that has an entry, or set DATABASE_URL to use another Postgres"
        ) from None


def unprivileged_user(*folders: Path) -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for folder in filter(Path.exists, folders):
        owner = folder.stat().st_uid
        with suppress(KeyError):  # initdb wants a user with a name
            if owner != 0:
                return pwd.getpwuid(owner)
    return pwd.getpwnam("nobody")


def halt(pid: int, *, gone: Callable[[], bool]) -> None:
    for how in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + PATIENCE
        with suppress(ProcessLookupError):
            os.kill(pid, how)
        while not gone() and time.monotonic() < deadline:
            time.sleep(0.02)
        if gone():
            return
    raise EmbeddedError(f"Postgres (pid {pid}) does not end")
