"""The role that serves: what a broker needs of the database, and nothing else. Who migrates owns the schema; who serves owns nothing.

Only additions: a release that serves as the owner works on as it did.
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
