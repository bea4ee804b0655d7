"""Policies: how queues, job types and schedules are configured, and what limits, unique keys and dependencies need to know.

Only additions: the release before works on with this schema. Policies should be configured once all processes are upgraded.
"""

from app.db.migrations import run_file

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(__file__, "up")


def downgrade() -> None:
    run_file(__file__, "down")
