"""The index that quotas of leases are counted by; made without holding up anybody who writes."""

from app.db.migrations import run_file_one_by_one

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file_one_by_one(__file__, "up")


def downgrade() -> None:
    run_file_one_by_one(__file__, "down")
