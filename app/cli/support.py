"""Functions that the commands share: they load the settings, find the database, and turn an error
into an exit with one line."""

import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from app.broker import Broker
    from app.settings import Settings

T = TypeVar("T")

WRONG_SETTINGS = 2
FAILED = 1
WRONG_VALUES = {
    "int_": "a whole number",
    "float_": "a number",
    "bool_": "true or false",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "greater than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}

failures_are_logged: ContextVar[bool] = ContextVar("failures_are_logged", default=False)


def load_settings(**overrides: str | int | None) -> "Settings":
    from pydantic import ValidationError

    from app.settings import Settings, misspelt_variables

    options: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    for warning in misspelt_variables():
        warn(warning)
    try:
        settings = Settings(**options)
    except ValidationError as error:
        problems = (
            f"{variable_name(str(item['loc'][0]))}: {explain_setting(item)}" if item["loc"] else explain_setting(item)
            for item in error.errors()
        )
        fail("; ".join(problems), WRONG_SETTINGS)
    check_hosts(settings)
    return settings


def check_hosts(settings: "Settings") -> None:
    from app.db.dsn import hosts

    for name in ("database_url", "listen_url"):
        url = getattr(settings, name)
        try:
            hosts(url.get_secret_value() if url else "")
        except ValueError as error:
            fail(f"{variable_name(name)}: {error}", WRONG_SETTINGS)


def explain_setting(error: Mapping[str, Any]) -> str:
    """Describes an invalid setting. Shows its value only if the setting is a number or a choice,
    because URLs and the pepper are secret."""
    context = {name: int(bound) if str(bound).endswith(".0") else bound for name, bound in error.get("ctx", {}).items()}
    for kind, text in WRONG_VALUES.items():
        if error["type"].startswith(kind):
            return f"must be {text.format(**context)}, not {error['input']}"
    return str(context.get("error", error["msg"]))


def warn(message: str) -> None:
    """Writes a warning for the operator to stderr. If the command is `serve` and stderr is not a
    terminal, the warning is a log line."""
    if failures_are_logged.get():
        from app.log import log

        log.warning("environment variable ignored", detail=message)
    else:
        print(f"longshore: warning: {message}", file=sys.stderr)


def variable_name(name: str) -> str:
    return "DATABASE_URL" if name.lower() == "database_url" else f"LONGSHORE_{name.upper()}"


def format_value(value: object) -> str:
    from pydantic import SecretStr

    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return redact(value.get_secret_value()) if isinstance(value, SecretStr) else str(value)


def redact(secret: str) -> str:
    """Replaces the password in a DSN by `***`. Replaces a secret that is not a DSN completely.

    The password may be in the user part of the DSN or in its parameters."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(secret)
    except (ArgumentError, ValueError):
        return "***"
    hidden = {name: "***" for name in url.query if "password" in name or name == "sslkey"}
    return url.update_query_dict(hidden).render_as_string(hide_password=True).replace("%2A", "*")


@contextmanager
def database(settings: "Settings", *, shared: bool = False, existing: bool = False) -> Iterator[str]:
    """Yields the DSN of the database. The embedded Postgres runs while the context is open.

    - `shared`: if a broker is running, uses its embedded Postgres instead of starting another.
    - `existing`: exits if there is no database, because the folder's name may be mistyped."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    from app.db.embedded.server import EmbeddedPostgres

    embedded = EmbeddedPostgres(embedded_folder(settings))
    if existing and not embedded.exists():
        fail(
            f"there is no database in {settings.data_dir.absolute()}: "
            "set LONGSHORE_DATA_DIR to the folder of the broker",
            FAILED,
        )
    running = embedded.running_dsn() if shared else None
    if running is not None:
        yield running
        return
    with embedded as dsn:
        embedded.restart_on_exit()
        yield dsn


def run_with_broker(
    command: Callable[["Broker"], Awaitable[None]], *, shared: bool = True, existing: bool = True
) -> None:
    """Runs a command with the services of a broker, but without an HTTP server.

    Passes `shared` and `existing` on to `database`, which explains them."""
    import asyncio

    from app import log
    from app.broker import build_broker
    from app.cli.migration import upgrade
    from app.errors import DatabaseUnavailable, Problem

    settings = load_settings()
    log.configure("error")

    async def run(dsn: str) -> None:
        broker = build_broker(settings, dsn)
        await broker.infra.db.open()
        try:
            await broker.infra.clock.refresh(broker.infra.db)
            await command(broker)
        except DatabaseUnavailable as problem:
            fail(broker.infra.db.explain_to_operator(problem), FAILED)
        finally:
            await broker.infra.db.close()

    with exit_on_error(), database(settings, shared=shared, existing=existing) as dsn:
        # Migrates the embedded Postgres, as `serve` does: a new data folder has no schema yet.
        if settings.database_url is None and upgrade(settings, dsn).before is None:
            print(f"longshore: created a new database in {settings.data_dir.absolute()}", file=sys.stderr)
        try:
            asyncio.run(run(dsn))
        except Problem as problem:
            fail(problem.detail, FAILED)


def validate(kind: type[T], fields: dict[str, object]) -> T:
    """Decodes fields into a model, as the API does. If they are invalid, exits with the error texts
    of the API."""
    import msgspec

    from app.errors import ValidationFailed
    from app.http.bodies import BodyDecoder
    from app.http.schema_types import UNSET

    body = msgspec.json.encode({name: value for name, value in fields.items() if value is not UNSET})
    try:
        return BodyDecoder(kind).decode(body)
    except ValidationFailed as problem:
        fail("; ".join(fault.detail for fault in problem.faults), WRONG_SETTINGS)


def command_line(*arguments: str) -> str:
    """Returns a command line of this program that the operator can run in a shell. If `python` is
    another interpreter in that shell, the command line begins with the path of this interpreter."""
    python, folder = Path(sys.executable), Path.cwd()
    on_path = shutil.which("python") == str(python)
    interpreter = "python" if on_path else str(python.relative_to(folder) if python.is_relative_to(folder) else python)
    return shlex.join([interpreter, "-m", "app", *arguments])


def admin_key_command(settings: "Settings") -> str:
    """Returns the command line that creates an administrator key in the database of these settings.
    The text names the variables with secrets, but does not contain their values."""
    from app.settings import Settings

    secrets = [variable_name(name) for name in ("database_url", "key_pepper") if getattr(settings, name) is not None]
    needs_folder = settings.database_url is None and settings.data_dir != Settings.model_fields["data_dir"].default
    folder = f"LONGSHORE_DATA_DIR={shlex.quote(str(settings.data_dir))} " if needs_folder else ""
    command = f"`{folder}{command_line('keys', 'create', '--name', 'admin', '--admin')}`"
    return f"{command} with the same {' and '.join(secrets)}" if secrets else command


def embedded_folder(settings: "Settings") -> Path:
    return settings.data_dir.absolute() / "postgres"


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns errors that an operator can fix into an exit with one line. Examples are a missing
    database, a data folder that another broker uses, and a port in use. Any other error is a bug
    and keeps its traceback."""
    from app.db.embedded.server import EmbeddedError

    try:
        yield
    except EmbeddedError as error:
        fail(str(error), FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except Exception as error:
        if not is_fixable_database_error(error):
            raise
        fail(f"the database cannot be used: {str(error).strip().splitlines()[0]}", FAILED)


def is_fixable_database_error(error: Exception) -> bool:
    """Whether an error comes from the database and has a cause that the operator can fix.

    Such causes are: no connection, no access, no such database, no disk space or memory, a lock
    timeout, and a DATABASE_URL that is not a valid DSN. The cause of any other database error is a
    wrong statement.
    """
    from asyncpg.exceptions import ClientConfigurationError
    from sqlalchemy.exc import ArgumentError

    state = str(getattr(getattr(error, "orig", error), "sqlstate", None))
    operator_states = ("08", "28", "3D", "53", "57", "42501", "55P03")
    causes = (error, getattr(error, "orig", error).__cause__)  # SQLAlchemy wraps the driver's error
    return state.startswith(operator_states) or any(
        isinstance(cause, ClientConfigurationError | ArgumentError) for cause in causes
    )


def fail(message: str, status: int) -> NoReturn:
    """Writes an error for the operator to stderr, and exits. If the command is `serve` and stderr
    is not a terminal, the error is a log line."""
    if failures_are_logged.get():
        from app.log import log

        log.error("broker not started", detail=message)
    else:
        print(f"longshore: {message}", file=sys.stderr)
    raise typer.Exit(status)
