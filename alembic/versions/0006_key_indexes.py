"""The index for counting the leases of a key, created without blocking writes."""

from app.db.migrations import run_file_in_autocommit

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file_in_autocommit(__file__, "up")


def downgrade() -> None:
    run_file_in_autocommit(__file__, "down")
