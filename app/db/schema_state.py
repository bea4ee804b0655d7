"""Explains why this release cannot use the schema of a database: names the revision of the schema,
the revision that the release needs, and the command to run."""

import asyncpg

from app.db.migrations import head, older_than_head
from app.db.primary import UNREACHABLE, Connection

# Postgres raises these errors if a statement does not match the schema, or if the role lacks a
# privilege.
MISMATCHES = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InsufficientPrivilegeError,
)


def schema_problem(revision: str | None) -> str | None:
    """Says why this release cannot work with a revision of the schema, or returns None if it can. A
    release works with a newer revision, because migrations run before a release is deployed."""
    if revision not in older_than_head():
        return None
    state = f"the schema is at {revision}" if revision else "the database has no schema yet"
    return f"{state}, this release needs {head()}: run `python -m app migrate`"


async def describe_mismatch(connection: Connection, error: asyncpg.PostgresError) -> str | None:
    """Describes why a statement failed with one of the errors in MISMATCHES: a missing table,
    column, function or privilege. Returns None if the schema is not the cause."""
    message = error.args[0] if error.args else type(error).__name__
    try:
        role, revision = await connection.fetchval("SELECT current_user"), await _revision(connection)
    except UNREACHABLE:
        return f"the database rejects the statement: {message}"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return (
            f"the database role {role} may not use the schema ({message}): "
            f"its owner must run SELECT grant_to_broker('{role}')"
        )
    if (outdated := schema_problem(revision)) is not None:
        return outdated
    if isinstance(error, asyncpg.UndefinedFunctionError) and revision == head():
        return None
    newer = (
        "" if revision == head() else f", and this release knows the schema up to {head()} only: run a newer release"
    )
    return f"the schema is at {revision}, but {message}{newer}"


async def _revision(connection: Connection) -> str | None:
    """Reads the revision of the schema. Returns None if there is no schema, or if the role cannot
    see the schema."""
    try:
        revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    except MISMATCHES:
        return None
    return revision
