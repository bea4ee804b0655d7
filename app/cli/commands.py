"""The command line: serve, migrate, keys, backup, restored, openapi, config. Each command imports the heavy libraries that it needs."""

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from app.cli import api_keys
from app.cli.support import (
    FAILED,
    WRONG_SETTINGS,
    command_line,
    database,
    display,
    embedded_folder,
    exit_on_error,
    fail,
    failures_are_logged,
    load_settings,
    redact,
    run_with_broker,
    upgrade,
    variable,
)

if TYPE_CHECKING:
    from socket import socket

    from app.broker import Broker
    from app.db.migrations import Upgraded
    from app.settings import Settings

cli = typer.Typer(
    name="longshore",
    help="A durable job broker: REST in front, Postgres behind.",
    no_args_is_help=True,
    add_completion=False,
)

cli.add_typer(api_keys.cli, name="keys")


Host = Annotated[str | None, typer.Option(help="Address to serve on, instead of LONGSHORE_HOST.")]
Port = Annotated[int | None, typer.Option(help="Port to serve on, instead of LONGSHORE_PORT.")]
Migrate = Annotated[
    bool | None, typer.Option("--migrate/--no-migrate", help="Migrate first; by default only the embedded Postgres.")
]


@cli.command()
def serve(host: Host = None, port: Port = None, migrate: Migrate = None) -> None:
    """Serve the API until SIGTERM or Ctrl-C; without DATABASE_URL on a Postgres of our own."""
    from app import log
    from app.server.listener import bind

    log.configure("info")
    failures_are_logged.set(not sys.stderr.isatty())
    settings = load_settings(host=host, port=port)
    log.configure(settings.log_level)
    log.capture_everything_else()
    exit_on_signals()
    with (
        exit_on_error(),
        bind(settings.host, settings.port) as listener,
        log_shutdown(listener),
        database(settings) as dsn,
    ):
        if migrate or (migrate is None and settings.database_url is None):
            log_upgrade(upgrade(direct(settings, dsn)))
        require_keys_or_loopback(settings, dsn)
        run(settings, dsn, listener)


@cli.command()
def migrate() -> None:
    """Bring the database to the newest schema."""
    settings = load_settings()
    with exit_on_error(), database(settings) as dsn:
        before, after = upgrade(direct(settings, dsn))
        print(
            f"The schema is already at {after}."
            if before == after
            else f"Migrated the schema from {before or 'nothing'} to {after}."
        )


@cli.command()
def backup(
    folder: Annotated[
        Path, typer.Argument(help="A folder that does not exist yet; a restored broker uses it as LONGSHORE_DATA_DIR.")
    ],
) -> None:
    """Copy the embedded Postgres, with or without a broker running on it."""
    settings = load_settings()
    if settings.database_url is not None:
        fail(
            "backup copies the embedded Postgres only; for your own use pg_basebackup or pgBackRest, for example (docs/ha.md)",
            WRONG_SETTINGS,
        )
    from app.db.embedded.backup import back_up, check_target

    target = folder.absolute()
    with exit_on_error(), report_interruption(target):
        check_target(target, settings.data_dir.absolute())
        with database(settings, shared=True, existing=True) as dsn:
            back_up(dsn, embedded_folder(settings), target)
    print(
        f"{folder} is a backup of {settings.data_dir}. To restore it, stop the broker and run:",
        *restore_commands(target),
        sep="\n",
    )


@cli.command()
def restored() -> None:
    """After the database was brought back to an earlier time, before brokers serve it: end every lease of that time.

    Refuses a data folder that a broker serves. With DATABASE_URL, stop the brokers yourself: it takes jobs away from live workers."""
    from app.maintenance.restore import end_leases

    async def end(broker: "Broker") -> None:
        count = await end_leases(broker.infra, broker.settlements)
        print(
            "1 lease ended; its job is handed out again"
            if count == 1
            else f"{count} leases ended; their jobs are handed out again"
        )

    run_with_broker(end, shared=False)


@cli.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    import json

    from app.application import create_app
    from app.http.openapi import document
    from app.settings import Settings

    # The defaults, not this machine's settings: the document is a file in the repository.
    settings = Settings.model_construct()
    print(json.dumps(document(create_app(settings, "postgresql://")), indent=2, ensure_ascii=False))


@cli.command()
def config() -> None:
    """Print the effective settings, secrets masked."""
    for name, value in load_settings():
        print(f"{variable(name)}={display(value)}")


def restore_commands(backup: Path) -> list[str]:
    """The commands of docs/backup.md. They use a copy, so that the backup can be restored again."""
    restored = f"{backup}.restored"
    setting = f"LONGSHORE_DATA_DIR={shlex.quote(restored)}"
    return [
        shlex.join(["cp", "-a", str(backup), restored]),
        *(f"{setting} {command_line(name)}" for name in ("restored", "serve")),
    ]


@contextmanager
def report_interruption(target: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a backup with one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        fail(
            f"interrupted: there is no backup in {target}; delete {target}.partial if it exists, and run the command again",
            FAILED,
        )


def require_keys_or_loopback(settings: "Settings", dsn: str) -> None:
    """Without keys we serve this machine only. A database that cannot be asked now is asked by the requests: till then nobody gets in."""
    from app.settings import is_loopback

    if is_loopback(settings.host) or settings.allow_anonymous:
        return
    if has_api_keys(dsn) is False:
        fail(
            f"there is no API key, so {settings.host} would be open to everyone who can reach it. Create one with the same settings: "
            f"`{command_line('keys', 'create', '--name', 'admin', '--admin')}`, or set LONGSHORE_ALLOW_ANONYMOUS=true",
            WRONG_SETTINGS,
        )


def has_api_keys(dsn: str) -> bool | None:
    """None: the database, or its schema, is not there yet."""
    import asyncio

    from app.db.primary import UNREACHABLE, PrimaryConnector

    async def look() -> bool:
        connection = await PrimaryConnector(dsn).connect(timeout=5)
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


def log_upgrade(upgraded: "Upgraded") -> None:
    from app.log import log

    if upgraded.before != upgraded.after:
        log.info("schema migrated", before=upgraded.before, after=upgraded.after)


def run(settings: "Settings", dsn: str, listener: "socket") -> None:
    from app.application import create_app
    from app.server import server
    from app.server.listener import base_url

    data = settings.database_url and redact(settings.database_url.get_secret_value())
    where = data or f"{embedded_folder(settings)} (embedded Postgres)"
    server.serve(
        create_app(settings, dsn),
        settings,
        listener,
        on_listening=lambda _host, _port: print_banner(base_url(listener), where),
    )


def print_banner(base: str, where: str) -> None:
    """Prints a banner if stderr is a terminal. A log pipeline finds the address in the line `broker started`."""
    if not sys.stderr.isatty():
        return
    print(
        f"""Longshore listens on {base} (documentation: {base}/docs)
Data: {where}
Try:
  curl -s {base}/jobs -d '{{"queue": "mail", "job_type": "welcome", "payload": {{"to": "ada"}}}}'
  curl -s {base}/claim -d '{{"queues": ["mail"], "worker_id": "me", "wait_seconds": 5}}'
  curl -s {base}/stats""",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def log_shutdown(listener: "socket") -> Iterator[None]:
    """Writes the last line of a broker's log, when everything has ended, including the embedded Postgres."""
    from app import RELEASE
    from app.log import log
    from app.server.listener import base_url

    address = base_url(listener)
    try:
        yield
    except SystemExit:  # raised by the signal handler; a start that fails logs `broker not started` instead
        log.info("shutdown complete", release=RELEASE, address=address)
        raise


def exit_on_signals() -> None:
    """uvicorn raises the signal again once it has shut down: as an exit it unwinds, so that Postgres is stopped too."""

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


def main() -> None:
    cli()
