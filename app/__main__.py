"""The command line: serve, migrate, keys, restored, openapi, config. Heavy libraries are imported by the command that needs them."""

import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from app import key_commands
from app.terminal import (
    FAILED,
    WRONG_SETTINGS,
    database,
    embedded_folder,
    fail,
    failing_clearly,
    in_the_house,
    load_settings,
    masked,
    shown,
    variable,
)

if TYPE_CHECKING:
    from app.house import House
    from app.settings import Settings

cli = typer.Typer(
    name="longshore", help="A durable job broker: REST in front, Postgres behind.", no_args_is_help=True, add_completion=False
)

cli.add_typer(key_commands.cli, name="keys")


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
            upgrade(direct(settings, dsn))
        refuse_an_open_door(settings, dsn)
        run(settings, dsn)


@cli.command()
def migrate() -> None:
    """Bring the database to the newest schema."""
    settings = load_settings()
    with failing_clearly(), database(settings) as dsn:
        upgrade(direct(settings, dsn))


@cli.command()
def restored() -> None:
    """After the database was brought back to an earlier time, before brokers serve it: end every lease of that time."""
    from app.maintenance.restoring import end_leases

    async def end(house: "House") -> None:
        print(f"{await end_leases(house.floor, house.settling)} leases ended; their jobs are handed out again")

    in_the_house(end)


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


def refuse_an_open_door(settings: "Settings", dsn: str) -> None:
    """Without keys we serve this machine only. A database that cannot be asked now is asked by the requests: till then nobody gets in."""
    from app.settings import is_loopback

    if is_loopback(settings.host) or settings.allow_anonymous:
        return
    if keys_were_made(dsn) is False:
        fail(
            f"no API key was ever made, so {settings.host} would be open to everyone who can reach it: make one "
            "(`python -m app keys create --name admin --scope manage`), or say LONGSHORE_ALLOW_ANONYMOUS=true",
            WRONG_SETTINGS,
        )


def keys_were_made(dsn: str) -> bool | None:
    """None: the database, or its schema, is not there yet."""
    import asyncio

    from app.db.servers import UNREACHABLE, Servers

    async def look() -> bool:
        connection = await Servers(dsn).connect(timeout=5)
        try:
            return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM api_keys)"))
        finally:
            await connection.close()

    try:
        return asyncio.run(look())
    except UNREACHABLE:
        return None


def direct(settings: "Settings", dsn: str) -> str:
    """Past a pooler: a migrator holds a lock of its session."""
    return settings.listen_url.get_secret_value() if settings.listen_url else dsn


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


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
