"""The release before this one, from git: its code runs beside ours, on our schema."""

import io
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

from app.db.migrations import ROOT
from tests.broker import RunningBroker, broker_process

PREVIOUS = "0b7623ff50"  # the last commit of the release before: schema 0004


def _archive() -> bytes | None:
    """None in a clone without its history."""
    archive = ["git", "archive", "--format=zip", PREVIOUS, "app", "alembic", "alembic.ini"]
    made = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False)
    return made.stdout if made.returncode == 0 else None


IS_AVAILABLE = _archive() is not None


def unpack(folder: Path) -> Path:
    """Its tree, which `python -m app` runs from with the libraries of this one."""
    archive = _archive()
    assert archive is not None
    with zipfile.ZipFile(io.BytesIO(archive)) as tree:
        tree.extractall(folder)
    return folder


@contextmanager
def release_process(tree: Path, dsn: str, **settings: str) -> Iterator[tuple[RunningBroker, "subprocess.Popen[str]"]]:
    """A broker of the release that lies there."""
    with ExitStack() as stack:
        with chdir(tree):
            started = stack.enter_context(broker_process(dsn, **settings))
        yield started
