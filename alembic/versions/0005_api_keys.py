"""API keys; and whose quota a lease counts against.

Only additions: the release before works on with this schema, but asks nobody for a key. Make keys once all processes are upgraded.
"""

from app.db.migrations import run_file

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(__file__, "up")


def downgrade() -> None:
    run_file(__file__, "down")
