"""Configuration of queues, job types and schedules; columns and tables for limits, unique keys and
dependencies.

Only additions, so the previous release keeps working with this schema. Configure policies only when
all processes are upgraded.
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
