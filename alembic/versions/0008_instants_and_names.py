"""The SQL function rejects times before 1970 and the names `.` and `..`, as HTTP does.

Only rejections are added, so the previous release keeps working. Over HTTP it still accepts what
the function rejects.
"""

from app.db.migrations import run_file

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(__file__, "up")


def downgrade() -> None:
    run_file(__file__, "down")
