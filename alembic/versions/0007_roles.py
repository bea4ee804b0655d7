"""The broker's role, with the privileges that a broker needs and no others. The migrating role owns
the schema; the broker's role owns nothing.

Only additions, so a broker that connects as the owner keeps working.
"""

from app.db.migrations import run_file

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(__file__, "up")


def downgrade() -> None:
    run_file(__file__, "down")
