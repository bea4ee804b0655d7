"""The indexes that limits, turns and deadlines read by; made without holding up anybody who writes."""

from app.db.migrations import run_file_one_by_one

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file_one_by_one(__file__, "up")


def downgrade() -> None:
    run_file_one_by_one(__file__, "down")
