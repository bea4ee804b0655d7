"""Explains what is wrong with the schema: which revision it has, which one is needed, which command to run."""

import asyncpg

from app.db.migrations import head, older_than_head
from app.db.primary import UNREACHABLE, Connection

# Errors of Postgres if a statement does not match the schema, or if the role lacks a privilege.
MISMATCHES = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InsufficientPrivilegeError,
)


def schema_problem(revision: str | None) -> str | None:
    """Why this release cannot work with the revision; None if it can. A newer one is fine: migrations run before the release."""
    if revision not in older_than_head():
        return None
    there = f"the schema is at {revision}" if revision else "the database has no schema yet"
    return f"{there}, this release needs {head()}: run `python -m app migrate`"


async def explain(connection: Connection, error: asyncpg.PostgresError) -> str | None:
    """A sentence for the caller of a statement that failed with one of MISMATCHES; None if the schema is not the cause."""
    message = error.args[0] if error.args else type(error).__name__
    try:
        role, revision = await connection.fetchval("SELECT current_user"), await _revision(connection)
    except UNREACHABLE:
        return f"the database refuses: {message}"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return f"the database role {role} may not use the schema ({message}): its owner must run SELECT grant_to_broker('{role}')"
    if (outdated := schema_problem(revision)) is not None:
        return outdated
    if isinstance(error, asyncpg.UndefinedFunctionError) and revision == head():
        return None
    newer = (
        "" if revision == head() else f", and this release knows the schema up to {head()} only: run a newer release"
    )
    return f"the schema is at {revision} and yet {message}{newer}"


async def _revision(connection: Connection) -> str | None:
    """None if there is no schema, or none that the role can see."""
    try:
        revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    except MISMATCHES:
        return None
    return revision
