"""Indexes for limits, admission and deadlines, created without blocking writes."""

from app.db.migrations import run_file_in_autocommit

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file_in_autocommit(__file__, "up")


def downgrade() -> None:
    run_file_in_autocommit(__file__, "down")
