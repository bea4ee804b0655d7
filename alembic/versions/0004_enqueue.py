"""Enqueue in the caller's own transaction: a function for services that share the database, and the
role that may call it."""

from app.db.migrations import run_file

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_file(__file__, "up")


def downgrade() -> None:
    run_file(__file__, "down")
