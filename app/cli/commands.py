"""The commands: serve, migrate, distribute, keys, backup, restored, openapi, sql, config.

Large libraries are imported inside the commands that need them, so that other commands start fast.
"""

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import api_keys
from app.cli.distribution import distribute
from app.cli.migration import direct_dsn, upgrade
from app.cli.serving import (
    exit_on_signals,
    log_shutdown,
    log_upgrade,
    require_keys_or_loopback,
    require_stored_queue_ids,
    run,
)
from app.cli.support import (
    FAILED,
    WRONG_SETTINGS,
    command_line,
    database,
    embedded_folder,
    exit_on_error,
    fail,
    failures_are_logged,
    format_value,
    load_settings,
    run_with_broker,
    variable_name,
)

if TYPE_CHECKING:
    from app.broker import Broker

cli = typer.Typer(
    name="longshore",
    help="A durable job broker: REST in front, Postgres behind.",
    no_args_is_help=True,
    add_completion=False,
)

cli.add_typer(api_keys.cli, name="keys")
cli.command()(distribute)


Host = Annotated[str | None, typer.Option(help="Address to listen on, instead of LONGSHORE_HOST.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on, instead of LONGSHORE_PORT.")]
Migrate = Annotated[
    bool | None,
    typer.Option(
        "--migrate/--no-migrate", help="Migrate the schema first; default: only that of the embedded Postgres."
    ),
]


@cli.command()
def serve(host: Host = None, port: Port = None, migrate: Migrate = None) -> None:
    """Serve the API until SIGTERM or Ctrl-C.

    Without DATABASE_URL it starts an embedded Postgres."""
    from app import log
    from app.server.listener import bind

    log.configure("info")
    failures_are_logged.set(not sys.stderr.isatty())
    settings = load_settings(host=host, port=port)
    log.configure(settings.log_level)
    log.log_warnings_and_crashes()
    exit_on_signals()
    with (
        exit_on_error(),
        bind(settings.host, settings.port) as listener,
        log_shutdown(listener) as on_stopped,
        database(settings) as dsn,
    ):
        if migrate or (migrate is None and settings.database_url is None):
            log_upgrade(upgrade(settings, direct_dsn(settings, dsn)))
        require_stored_queue_ids(settings, dsn)
        require_keys_or_loopback(settings, dsn)
        run(settings, dsn, listener, on_stopped)


@cli.command()
def migrate() -> None:
    """Migrate the database to the newest schema."""
    settings = load_settings()
    with exit_on_error(), database(settings) as dsn:
        before, after = upgrade(settings, direct_dsn(settings, dsn))
        print(
            f"The schema is already at {after}."
            if before == after
            else f"Migrated the schema from {before or 'nothing'} to {after}."
        )


@cli.command()
def backup(
    folder: Annotated[
        Path, typer.Argument(help="A folder that does not exist yet; to restore, use it as LONGSHORE_DATA_DIR.")
    ],
) -> None:
    """Copy the embedded Postgres, whether or not a broker is running on it."""
    settings = load_settings()
    if settings.database_url is not None:
        fail(
            "backup copies the embedded Postgres only; for your own Postgres use pg_basebackup or pgBackRest, "
            "for example (docs/operations/high-availability.md)",
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
    """End all leases after a restore of the database, before brokers serve it again.

    Refuses a data folder that a broker is using. With DATABASE_URL, stop the brokers first: the
    command ends the leases of live workers."""
    from app.maintenance.restore import end_leases

    async def end(broker: "Broker") -> None:
        count = await end_leases(broker.infra, broker.lease_ender)
        messages = {0: "no job was leased", 1: "1 lease ended; its job can be claimed again"}
        print(messages.get(count, f"{count} leases ended; their jobs can be claimed again"))

    run_with_broker(end, shared=False)


@cli.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    import json

    from app.application import create_app
    from app.http.openapi import document
    from app.settings import Settings

    # Uses the default settings and not the settings of this machine, because the document is a file
    # in the repository.
    settings = Settings.model_construct()
    print(json.dumps(document(create_app(settings, "postgresql://")), indent=2, ensure_ascii=False))


@cli.command()
def sql(name: Annotated[str, typer.Argument(help="The name of a statement, for example `claim`.")]) -> None:
    """Print a statement with its fragments expanded, for psql: `\\set lane 256` sets a parameter."""
    from app.db.queries import find_query

    query = find_query(name)
    if query is None:
        fail(f"there is no statement named {name}; the .sql files of app/ list them", WRONG_SETTINGS)
    print(f"{query.comment}\n{query.text};")


@cli.command()
def config() -> None:
    """Print the effective settings, with secrets redacted."""
    for name, value in load_settings():
        print(f"{variable_name(name)}={format_value(value)}")


def restore_commands(backup: Path) -> list[str]:
    """Returns the shell commands that restore a backup, as in docs/operations/backup.md. They start
    the broker on a copy of the backup, so that the backup can be restored again."""
    copy = f"{backup}.restored"
    setting = f"LONGSHORE_DATA_DIR={shlex.quote(copy)}"
    return [
        shlex.join(["cp", "-a", str(backup), copy]),
        *(f"{setting} {command_line(name)}" for name in ("restored", "serve")),
    ]


@contextmanager
def report_interruption(target: Path) -> Iterator[None]:
    """If Ctrl-C or SIGTERM interrupts a backup, exits with one line that names the incomplete
    folder, which the operator must delete."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        fail(
            f"interrupted: there is no backup in {target}; "
            f"delete {target}.partial if it exists, and run the command again",
            FAILED,
        )


def main() -> None:
    cli()
