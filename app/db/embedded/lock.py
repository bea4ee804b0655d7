"""Who owns the folder of an embedded Postgres: a file lock held for the owner's life, and in the file who that is."""

import fcntl
import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO


class EmbeddedError(Exception):
    """The embedded Postgres could not start; the message says why and what to do."""


class AlreadyOwned(EmbeddedError):
    """Another living process holds the folder; the message names it."""


class Ownership:
    """The kernel frees the lock when we die, so it is never stale; the file stays, as deleting a locked file would be a race."""

    def __init__(self, folder: Path) -> None:
        self._file = _open(folder / "owner")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyOwned(_describe(folder, self._take_reading())) from None
        runtime = _read(self._file).get("runtime")
        self.left_behind = Path(runtime) if runtime else None
        self._pin: int | None = None
        self._note(runtime)

    def claim(self, runtime: Path) -> None:
        """Have the next owner remove this folder if we cannot; locked, it is safe from systemd's cleaning of /tmp."""
        self._note(str(runtime))
        self._pin = os.open(runtime, os.O_RDONLY)
        fcntl.flock(self._pin, fcntl.LOCK_SH)

    def _note(self, runtime: str | None) -> None:
        owner = {
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(sys.orig_argv),
        }
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(owner | ({"runtime": runtime} if runtime else {})))
        self._file.flush()

    def give_up(self) -> None:
        if self._pin is not None:
            os.close(self._pin)
        self._file.truncate(0)
        self._file.close()

    def _take_reading(self) -> dict[str, str]:
        with self._file as file:
            return _read(file)


def _open(path: Path) -> IO[str]:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
    except PermissionError as error:
        raise EmbeddedError(
            f"cannot write {path}: it belongs to another user; start as that user, or set LONGSHORE_DATA_DIR"
        ) from error


def _read(file: IO[str]) -> dict[str, str]:
    file.seek(0)
    with suppress(ValueError, AttributeError):  # the owner may be about to write it, or a crash have cut it short
        return {str(key): str(value) for key, value in json.loads(file.read()).items()}
    return {}


def _describe(folder: Path, owner: Mapping[str, str]) -> str:
    who = (
        f"process {owner['pid']} (since {owner['since']}: {owner['command']})"
        if "pid" in owner
        else "another process that is starting"
    )
    return f"{folder} is in use by {who}; stop it, or set LONGSHORE_DATA_DIR to another folder"
