"""The previous release, from git: its brokers run beside this release, on this release's schema."""

import io
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

from app.db.migrations import ROOT
from tests.broker import RunningBroker, broker_process

# The commit of the last change to the baseline schema (0001). There is no release yet, and no earlier
# commit works on this schema. After a release it is the last commit of the release before.
PREVIOUS = "e96f7af356"


def _archive() -> bytes | None:
    """Returns the source tree as a zip file; None in a clone without history."""
    archive = ["git", "archive", "--format=zip", PREVIOUS, "app", "alembic", "alembic.ini"]
    result = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


IS_AVAILABLE = _archive() is not None


def unpack(folder: Path) -> Path:
    """Unpacks the source tree. `python -m app` runs from it with the libraries of this release."""
    archive = _archive()
    assert archive is not None
    with zipfile.ZipFile(io.BytesIO(archive)) as tree:
        tree.extractall(folder)
    return folder


@contextmanager
def release_process(tree: Path, dsn: str, **settings: str) -> Iterator[tuple[RunningBroker, "subprocess.Popen[str]"]]:
    """Runs a broker of the release in `tree`."""
    with ExitStack() as stack:
        with chdir(tree):
            started = stack.enter_context(broker_process(dsn, **settings))
        yield started
