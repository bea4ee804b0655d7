"""Backs up an embedded Postgres, even while it is running. The backup is a complete data folder: a
broker can use it as LONGSHORE_DATA_DIR."""

import os
import shutil
import subprocess
from pathlib import Path

from app.db.embedded.binaries import ENVIRONMENT, find_binaries
from app.db.embedded.lock import EmbeddedError


def check_target(target: Path, data_dir: Path) -> None:
    """Raises EmbeddedError if the target exists or is inside the data folder. If it were inside, a
    copy of the data folder would contain the backup, and deleting the data folder would delete
    both."""
    if target.exists():
        raise EmbeddedError(f"{target} exists already: a backup needs a new folder")
    if target.resolve().is_relative_to(data_dir.resolve()):
        raise EmbeddedError(
            f"{target} is inside the data folder {data_dir}: choose a folder outside it, best on another disk"
        )


def back_up(dsn: str, source: Path, target: Path) -> None:
    """Makes a backup of the server at `dsn`, whose folder is `source`.

    Copies into the folder `<target>.partial`, and renames it at the end. So a folder with the name
    of the target is always a complete backup. Uses pg_basebackup, because it includes roles, which
    pg_dump leaves out, and flushes its files to disk.
    """
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    copy = partial / "postgres"
    copy.mkdir(parents=True)
    _run("pg_basebackup", "--pgdata", str(copy / "data"), "--dbname", dsn, "--checkpoint=fast", "--wal-method=stream")
    _copy_owner(source / "data", copy / "data")
    partial.rename(target)


def _run(program: str, *arguments: str) -> None:
    path = find_binaries() / program
    if not path.is_file():
        raise EmbeddedError(f"{path} is missing: install all of Postgres's client programs")
    completed = subprocess.run(
        [path, *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        raise EmbeddedError(f"{program} failed: {completed.stderr.strip()[-2000:]}")


def _copy_owner(source: Path, copy: Path) -> None:
    """Changes the owner of the copy to that of the source. If root makes the backup, Postgres runs
    as another user, who must own the copy."""
    owner = source.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for path in (copy, *copy.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
