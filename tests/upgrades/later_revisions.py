"""Two revisions after the baseline, for tests of what later migrations need: one that alters a
table in a transaction, and one that builds an index outside of one.

They are in a copy of the migrations, in a temporary folder."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.db import migrations

BASELINE = "0001"
COLUMN = "0002"  # needs an exclusive lock on `jobs`
INDEX = "0003"  # needs CREATE INDEX CONCURRENTLY
REVISION = """
from app.db.migrations import {function}

revision = "{revision}"
down_revision = "{down_revision}"


def upgrade() -> None:
    {function}(__file__, "up")


def downgrade() -> None:
    {function}(__file__, "down")
"""
SCRIPTS = {
    "0002_column.py": REVISION.format(function="run_files", revision=COLUMN, down_revision=BASELINE),
    "0002_column.up.sql": "ALTER TABLE jobs ADD COLUMN later int;",
    "0002_column.down.sql": "ALTER TABLE jobs DROP COLUMN later;",
    "0003_index.py": REVISION.format(function="run_files_in_autocommit", revision=INDEX, down_revision=COLUMN),
    "0003_index.up.sql": """
DROP INDEX CONCURRENTLY IF EXISTS jobs_later;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_later ON jobs (later) WHERE later IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS jobs_later_by_lane;
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_later_by_lane ON jobs (lane, later) WHERE later IS NOT NULL;
""",
    "0003_index.down.sql": """
DROP INDEX CONCURRENTLY IF EXISTS jobs_later_by_lane;
DROP INDEX CONCURRENTLY IF EXISTS jobs_later;
""",
}


@contextmanager
def later_revisions(folder: Path) -> Iterator[Path]:
    """Adds the revisions to this process's migrations until the block ends.

    Yields the folder that takes the place of `migrations.ROOT`."""
    shutil.copy(migrations.ROOT / "alembic.ini", folder)
    shutil.copytree(
        migrations.ROOT / "alembic",
        folder / "alembic",
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    for name, text in SCRIPTS.items():
        (folder / "alembic" / "versions" / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "ROOT", folder)
        _forget_revisions()
        yield folder
    _forget_revisions()


def _forget_revisions() -> None:
    migrations.head.cache_clear()
    migrations.older_than_head.cache_clear()
