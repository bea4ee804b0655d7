"""The parts of the command `serve`: the check for API keys, the banner, the last log line, and
signal handlers."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from app.cli.support import WRONG_SETTINGS, admin_key_command, embedded_folder, fail, redact

if TYPE_CHECKING:
    from socket import socket

    from app.db.migrations import UpgradeResult
    from app.server.server import Stopped
    from app.settings import Settings


def require_keys_or_loopback(settings: "Settings", dsn: str) -> None:
    """Exits if other machines can reach the broker and no API key exists, unless the settings allow
    anonymous callers.

    Does not exit if the database is unreachable, because the broker rejects all requests until it
    has read the keys."""
    from app.settings import is_loopback

    if is_loopback(settings.host) or settings.allow_anonymous:
        return
    if has_api_keys(dsn) is False:
        fail(
            f"there is no API key, so {settings.host} would be open to everyone who can reach it. "
            f"Create one: {admin_key_command(settings)}, or set LONGSHORE_ALLOW_ANONYMOUS=true",
            WRONG_SETTINGS,
        )


def require_stored_queue_ids(settings: "Settings", dsn: str) -> None:
    """Exits if the settings have another range of queue ids than the database. A database that
    cannot be read has no range yet, and `migrate` will store one."""
    if settings.queue_ids is None:
        return
    stored = read_value(dsn, "SELECT first_id || '-' || last_id FROM queue_id_range")
    if stored not in (None, "{}-{}".format(*settings.queue_id_range or ())):
        fail(
            f"LONGSHORE_QUEUE_IDS is {settings.queue_ids}, but the database has {stored}: "
            "run `python -m app migrate` with the same LONGSHORE_QUEUE_IDS",
            WRONG_SETTINGS,
        )


def has_api_keys(dsn: str) -> bool | None:
    """Whether any API key exists. Returns None if the database or the table cannot be read."""
    exists: bool | None = read_value(dsn, "SELECT EXISTS (SELECT FROM api_keys)")
    return exists


def read_value(dsn: str, query: str) -> Any:
    """Returns the value that a query reads, or None if the database or the table cannot be read."""
    import asyncio

    from app.db.primary import UNREACHABLE, single_connection

    async def read() -> Any:
        async with single_connection(dsn) as connection:
            return await connection.fetchval(query)

    try:
        return asyncio.run(read())
    except UNREACHABLE:
        return None


def log_upgrade(upgraded: "UpgradeResult") -> None:
    from app.log import log

    if upgraded.before != upgraded.after:
        log.info("schema migrated", before=upgraded.before, after=upgraded.after)


def run(settings: "Settings", dsn: str, listener: "socket", on_stopped: "Stopped") -> None:
    from app.application import create_app
    from app.server import server
    from app.server.listener import base_url

    external = settings.database_url and redact(settings.database_url.get_secret_value())
    location = external or f"{embedded_folder(settings)} (embedded Postgres)"
    # The banner is only for terminals. If stderr goes to a log pipeline instead, the log event
    # `broker started` contains the same information.
    banner = format_banner(base_url(listener), location, has_api_keys(dsn) is True) if sys.stderr.isatty() else ""
    server.serve(
        create_app(settings, dsn),
        settings,
        listener,
        on_listening=lambda _host, _port: print(banner, end="", file=sys.stderr, flush=True),
        on_stopped=on_stopped,
    )


def format_banner(base: str, location: str, needs_key: bool) -> str:
    """Returns the lines that `serve` prints on a terminal: where the broker listens, and commands
    to try."""
    header = ' -H "Authorization: Bearer $LONGSHORE_KEY"' if needs_key else ""
    return f"""Longshore listens on {base} (documentation: {base}/docs)
Data: {location}
Try{" (with an API key in LONGSHORE_KEY)" if needs_key else ""}:
  curl -s {base}/jobs{header} -d '{{"queue": "mail", "job_type": "welcome", "payload": {{"to": "ada"}}}}'
  curl -s {base}/claim{header} -d '{{"queues": ["mail"], "worker_id": "me", "wait_seconds": 5}}'
  curl -s {base}/stats{header}
"""


@contextmanager
def log_shutdown(listener: "socket") -> Iterator["Stopped"]:
    """Writes the last log line of a broker, after everything has ended, including Postgres.

    Yields a function that adds fields to the line. The server calls this function when it stops,
    unless the broker stops before it serves.
    """
    from app import RELEASE
    from app.log import log
    from app.server.listener import base_url

    address, fields = base_url(listener), dict[str, Any](schema=None)
    try:
        yield fields.update
    except SystemExit:  # raised by the signal handler; a start that fails logs `broker not started` instead
        log.info("shutdown complete", release=RELEASE, address=address, **fields)
        raise


def exit_on_signals() -> None:
    """Makes SIGTERM and SIGINT raise SystemExit, so that the context managers of `serve` stop the
    embedded Postgres. While uvicorn runs, it handles the signal first, and sends the signal again
    after its shutdown.

    SIGHUP has the effect of SIGTERM, because a terminal that closes sends SIGHUP. Under `nohup`,
    SIGHUP stays ignored."""

    def exit_process(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, exit_process)
    signal.signal(signal.SIGINT, exit_process)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda _signal, _frame: signal.raise_signal(signal.SIGTERM))
