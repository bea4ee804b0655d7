"""Creates the whole schema: tables, functions, the enqueue function for other services, and roles.

The reasons for the design of the tables: a claim reads an index that contains only ready jobs;
finished jobs are removed by dropping partitions; statistics are sums of deltas, not counts of rows.
"""

from app.db.migrations import run_files

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_files(__file__, "up")


def downgrade() -> None:
    run_files(__file__, "down")
