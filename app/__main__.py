"""The command line: serve, migrate, openapi, config. Heavy libraries are imported by the command that needs them."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from app.settings import Settings

cli = typer.Typer(
    name="longshore", help="A durable job broker: REST in front, Postgres behind.", no_args_is_help=True, add_completion=False
)

WRONG_SETTINGS = 2
FAILED = 1

Host = Annotated[str | None, typer.Option(help="Address to serve on, instead of LONGSHORE_HOST.")]
Port = Annotated[int | None, typer.Option(help="Port to serve on, instead of LONGSHORE_PORT.")]
Migrate = Annotated[bool | None, typer.Option("--migrate/--no-migrate", help="Migrate first; by default only the embedded Postgres.")]


@cli.command()
def serve(host: Host = None, port: Port = None, migrate: Migrate = None) -> None:
    """Serve the API until SIGTERM or Ctrl-C; without DATABASE_URL on a Postgres of our own."""
    settings = load_settings(host=host, port=port)
    leave_cleanly_on_signals()
    with failing_clearly(), database(settings) as dsn:
        if migrate or (migrate is None and settings.database_url is None):
            upgrade(dsn)
        run(settings, dsn)


@cli.command()
def migrate() -> None:
    """Bring the database to the newest schema."""
    settings = load_settings()
    with failing_clearly(), database(settings) as dsn:
        upgrade(dsn)


@cli.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    import json

    from app.main import create_app
    from app.settings import Settings
    from app.web.openapi import document

    # The defaults, not this machine's settings: the document is a file in the repository.
    settings = Settings.model_construct()
    print(json.dumps(document(create_app(settings, "postgresql://")), indent=2, ensure_ascii=False))


@cli.command()
def config() -> None:
    """Print the effective settings, secrets masked."""
    for name, value in load_settings():
        print(f"{variable(name)}={shown(value)}")


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
def database(settings: "Settings") -> Iterator[str]:
    """The DSN of the database in use; the embedded one runs for as long as this is open."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    from app.db.embedded import EmbeddedPostgres

    with EmbeddedPostgres(embedded_folder(settings)) as dsn:
        yield dsn


def embedded_folder(settings: "Settings") -> Path:
    return settings.data_dir.absolute() / "postgres"


def upgrade(dsn: str) -> None:
    from app.db import migrations

    try:
        migrations.upgrade(dsn)
    except OSError as error:  # asyncpg passes on the socket's own words
        fail(f"the database cannot be reached: {error}", FAILED)


def run(settings: "Settings", dsn: str) -> None:
    from app import log
    from app.main import create_app
    from app.web import server

    log.configure(settings.log_level)
    data = settings.database_url and masked(settings.database_url.get_secret_value())
    where = data or f"{embedded_folder(settings)} (embedded Postgres)"
    server.serve(create_app(settings, dsn), settings, on_listening=lambda host, port: greet(host, port, where))


def greet(host: str, port: int, where: str) -> None:
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(
        f"""Longshore listens on {base} (documentation: {base}/docs)
Data: {where}
Try:
  curl -s {base}/jobs -d '{{"queue": "mail", "job_type": "welcome", "payload": {{"to": "ada"}}}}'
  curl -s {base}/claim -d '{{"queues": ["mail"], "worker_id": "me", "wait_seconds": 5}}'
  curl -s {base}/stats""",
        flush=True,
    )


def leave_cleanly_on_signals() -> None:
    """uvicorn raises the signal again once it has shut down: as an exit it unwinds, so that Postgres is stopped too."""

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


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


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
