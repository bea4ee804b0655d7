"""Locks the folder of an embedded Postgres with a file lock. The process that holds the lock, its
owner, writes its pid and its command into the file."""

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
    """The embedded Postgres could not start, stop or be backed up. The message says why and, if
    there is a remedy, what to do."""


class FolderInUse(EmbeddedError):
    """Another running process uses the folder. The message names the process."""


class FolderLock:
    """Locks a folder by locking its file `owner`. Raises FolderInUse if another process has locked
    it.

    The kernel releases the lock when the process dies, so the lock is never stale. `release` does
    not delete the file, because another process may have opened it in order to lock it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = _open(folder / "owner")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(_describe(folder, self._read_and_close())) from None
        temp_folder = _read(self._file).get("temp_folder")
        self.leftover_temp_folder = Path(temp_folder) if temp_folder else None
        self._temp_folder_lock: int | None = None
        self._write_owner(temp_folder)

    def record_temp_folder(self, temp_folder: Path) -> None:
        """Records the temporary folder of the server, so that the next owner of the lock can remove
        it if this process is killed. Locks the temporary folder, too, so that systemd does not
        remove it from /tmp."""
        self._write_owner(str(temp_folder))
        self._temp_folder_lock = os.open(temp_folder, os.O_RDONLY)
        fcntl.flock(self._temp_folder_lock, fcntl.LOCK_SH)

    def _write_owner(self, temp_folder: str | None) -> None:
        owner = {
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(sys.orig_argv),
        }
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(owner | ({"temp_folder": temp_folder} if temp_folder else {})))
        self._file.flush()

    def release(self) -> None:
        if self._temp_folder_lock is not None:
            os.close(self._temp_folder_lock)
        self._file.truncate(0)
        self._file.close()

    def _read_and_close(self) -> dict[str, str]:
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
    # The file is incomplete if its owner is still writing it, or if a crash has truncated it.
    with suppress(ValueError, AttributeError):
        return {str(key): str(value) for key, value in json.loads(file.read()).items()}
    return {}


def _describe(folder: Path, owner: Mapping[str, str]) -> str:
    process = (
        f"process {owner['pid']} (since {owner['since']}: {owner['command']})"
        if "pid" in owner
        else "another process that is starting"
    )
    return f"{folder} is in use by {process}; stop it, or set LONGSHORE_DATA_DIR to another folder"
