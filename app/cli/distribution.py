"""The command `longshore distribute`: spreads the tables over the nodes of a Citus cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.migration import direct_dsn
from app.cli.support import FAILED, WRONG_SETTINGS, exit_on_error, fail, load_settings

if TYPE_CHECKING:
    from app.db.distribution import Step
    from app.db.primary import Connection

# A step may copy a large table, but it must not make brokers wait for its locks.
SETTINGS = {"lock_timeout": "1s", "timezone": "UTC", "client_min_messages": "warning"}
TRIES = 20


def distribute(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the missing steps as SQL.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with status 1 if a step is missing.")] = False,
    role: Annotated[
        str | None, typer.Option(help="Role of the brokers, which gets their session settings on every node.")
    ] = None,
) -> None:
    """Distribute the tables over the nodes of a Citus cluster, empty or in use.

    Connects to the coordinator. Run it again after each migration: it does what is missing."""
    import asyncio

    settings = load_settings()
    if settings.database_url is None:
        fail("distribute needs DATABASE_URL: the coordinator of a Citus cluster", WRONG_SETTINGS)
    dsn = direct_dsn(settings, settings.database_url.get_secret_value())
    with exit_on_error():
        asyncio.run(_distribute(dsn, role, dry_run=dry_run, check=check))


async def _distribute(dsn: str, role: str | None, *, dry_run: bool, check: bool) -> None:
    from app.db.distribution import missing_steps, problems
    from app.db.migrations import head
    from app.db.primary import single_connection

    async with single_connection(dsn, **SETTINGS) as connection:
        if found := await problems(connection):
            fail("; ".join(found), FAILED)
        if await connection.fetchval("SELECT to_regclass('alembic_version') IS NULL") or head() != (
            await connection.fetchval("SELECT version_num FROM alembic_version")
        ):
            fail("the schema is not up to date: run `python -m app migrate` first", FAILED)
        steps = await missing_steps(connection, role)
        if check or dry_run:
            print(*[f"{step.sql};" if dry_run else f"missing: {step.text}" for step in steps], sep="\n", end="")
            print("" if steps else "Nothing is missing.")
            raise typer.Exit(FAILED if check and steps else 0)
        # A step leaves copies behind on the coordinator, which are a step of their own.
        while steps:
            for step in steps:
                await _run(connection, step)
            steps = await missing_steps(connection, role)
        await connection.execute("ANALYZE")
    print("All tables are distributed. Set LONGSHORE_LISTEN_URL of every broker to the coordinator.")


async def _run(connection: "Connection", step: "Step") -> None:
    """Runs a step. If a broker's transaction holds a lock that it needs, tries again."""
    import asyncio

    from asyncpg import LockNotAvailableError

    print(step.text, flush=True)
    for left in reversed(range(TRIES)):
        try:
            await connection.execute(step.sql)
            return
        except LockNotAvailableError:
            if not left:
                raise
            await asyncio.sleep(0.2)
