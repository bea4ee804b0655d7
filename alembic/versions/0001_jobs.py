"""The life of a job: live jobs, finished jobs, dead letters, keys, statistics.

Why these tables: a claim reads an index that holds ready jobs only; finished jobs leave by dropping partitions;
statistics are summed, not counted.
"""

from app.db.migrations import run_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(__file__, "up")


def downgrade() -> None:
    run_file(__file__, "down")
