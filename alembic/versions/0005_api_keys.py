"""API keys, and the key whose quota a lease counts against.

Only additions, so the previous release keeps working with this schema, but it requires no key.
Create keys only when all processes are upgraded.
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
