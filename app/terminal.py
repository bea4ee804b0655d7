"""What all commands share: settings from the environment, the database in use, and errors an operator can read."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from app.house import House
    from app.settings import Settings

T = TypeVar("T")

WRONG_SETTINGS = 2
FAILED = 1


def load_settings(**overrides: str | int | None) -> "Settings":
    from pydantic import ValidationError

    from app.settings import Settings

    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = (f"{variable(str(item['loc'][0])) if item['loc'] else 'settings'}: {item['msg']}" for item in error.errors())
        fail("; ".join(problems), WRONG_SETTINGS)


def variable(name: str) -> str:
    return "DATABASE_URL" if name.lower() == "database_url" else f"LONGSHORE_{name.upper()}"


def shown(value: object) -> str:
    from pydantic import SecretStr

    if value is None:
        return ""
    return masked(value.get_secret_value()) if isinstance(value, SecretStr) else str(value)


def masked(secret: str) -> str:
    """A DSN without its password, which may stand before the host or among the parameters; anything else is hidden whole."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(secret)
    except (ArgumentError, ValueError):
        return "***"
    hidden = {name: "***" for name in url.query if "password" in name or name == "sslkey"}
    return url.update_query_dict(hidden).render_as_string(hide_password=True).replace("%2A", "*")


@contextmanager
def database(settings: "Settings", *, shared: bool = False) -> Iterator[str]:
    """The DSN of the database in use; the embedded one runs for as long as this is open. `shared`: a broker's will do."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    from app.db.embedded import EmbeddedPostgres

    embedded = EmbeddedPostgres(embedded_folder(settings))
    running = embedded.running_dsn() if shared else None
    if running is not None:
        yield running
        return
    with embedded as dsn:
        embedded.revive()
        yield dsn


def in_the_house(act: Callable[["House"], Awaitable[None]]) -> None:
    """For commands that do what a call would do, on the database itself: beside running brokers, or without any."""
    import asyncio

    from app import log
    from app.db import migrations
    from app.errors import DatabaseUnavailable, Problem
    from app.house import build

    settings = load_settings()
    log.configure("error")

    async def run(dsn: str) -> None:
        house = build(settings, dsn)
        await house.floor.db.open()
        try:
            await house.floor.clock.refresh(house.floor.db)
            await act(house)
        finally:
            await house.floor.db.close()

    with failing_clearly(), database(settings, shared=True) as dsn:
        if settings.database_url is None:
            migrations.upgrade(dsn)  # as `serve` does: it may be as new as the folder
        try:
            asyncio.run(run(dsn))
        except DatabaseUnavailable as problem:
            fail(f"the database cannot be used ({problem.detail}): is it there, and migrated (`python -m app migrate`)?", FAILED)
        except Problem as problem:
            fail(problem.detail, FAILED)


def checked(kind: type[T], fields: dict[str, object]) -> T:
    """As the API would take it: what is wrong is said in its words."""
    import msgspec

    from app.web.shapes import UNSET

    try:
        return msgspec.convert({name: value for name, value in fields.items() if value is not UNSET}, kind)
    except msgspec.ValidationError as error:
        fail(str(error).replace("$.", ""), WRONG_SETTINGS)


def embedded_folder(settings: "Settings") -> Path:
    return settings.data_dir.absolute() / "postgres"


@contextmanager
def failing_clearly() -> Iterator[None]:
    """One line for what an operator can mend (no database, an owned folder, a taken port); a traceback only for our own mistakes."""
    from app.db.embedded import EmbeddedError

    try:
        yield
    except (EmbeddedError, OSError) as error:
        fail(str(error), FAILED)
    except Exception as error:
        if not is_database_trouble(error):
            raise
        fail(f"the database cannot be used: {str(error).strip().splitlines()[0]}", FAILED)


def is_database_trouble(error: Exception) -> bool:
    """No connection, no access, no such database, no room, no lock; or a DATABASE_URL that is none. Not: a wrong statement."""
    from asyncpg.exceptions import ClientConfigurationError
    from sqlalchemy.exc import ArgumentError

    state = str(getattr(getattr(error, "orig", error), "sqlstate", None))
    troubles = ("08", "28", "3D", "53", "57", "42501", "55P03")
    return state.startswith(troubles) or isinstance(error, ClientConfigurationError | ArgumentError)


def fail(message: str, status: int) -> NoReturn:
    print(f"longshore: {message}", file=sys.stderr)
    raise typer.Exit(status)
