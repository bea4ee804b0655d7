"""Jobs, finished jobs, dead letters, idempotency keys and statistics.

Why these tables: a claim reads an index that holds only ready jobs; finished jobs are removed by
dropping partitions; statistics are sums of deltas, not counts of rows.
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
