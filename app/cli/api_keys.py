"""The commands `longshore keys create | list | revoke`.

They write to the database directly, so that the first key can be created without another key."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.support import WRONG_SETTINGS, admin_key_command, fail, run_with_broker, validate

if TYPE_CHECKING:
    from datetime import datetime

    from app.api_keys.schemas import ApiKey
    from app.broker import Broker

cli = typer.Typer(help="API keys: create the first one here, others here or with POST /api-keys.", no_args_is_help=True)

CALLER = "command line"


async def warn_without_admin(broker: "Broker") -> None:
    """Warns if no administrator key is live. A warning is enough, because the command line can
    create an administrator key at any time."""
    if not await broker.api_keys.has_admin():
        command = admin_key_command(broker.infra.settings)
        print(f"longshore: warning: no active key has the admin scope; create one: {command}", file=sys.stderr)


@cli.command("create")
def create_key(
    name: Annotated[
        str, typer.Option(help="Name of the caller. Two active keys may share a name, so that keys can be rotated.")
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="enqueue, work, read or manage, or with queues: `work:email.*`. May be repeated."),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="All four scopes on all queues: an administrator's key.")
    ] = False,
    days: Annotated[
        float | None, typer.Option(help="Days until the key expires; default: never.", min=0.001, max=36500)
    ] = None,
    requests_per_second: Annotated[
        float | None, typer.Option(help="Maximum number of requests per second, in each process.")
    ] = None,
    max_leases: Annotated[int | None, typer.Option(help="Maximum number of leases held at once.")] = None,
) -> None:
    """Create a key and print it; it is not shown again. Once a key exists, all calls need one."""
    from datetime import timedelta

    from app.api_keys.schemas import ApiKeyCreate
    from app.http.schema_types import unset_if_none

    scopes = [*(scope or []), *(["admin"] if admin else [])]
    if not scopes:
        fail("give the key at least one --scope, or --admin for all scopes", WRONG_SETTINGS)

    async def create(broker: "Broker") -> None:
        fields = {
            "name": name,
            "scopes": scopes,
            "expires_at": unset_if_none(days and broker.infra.now() + timedelta(days=days)),
            "requests_per_second": unset_if_none(requests_per_second),
            "max_leases": unset_if_none(max_leases),
        }
        created = await broker.api_keys.create(validate(ApiKeyCreate, fields), CALLER)
        print(created.key)
        await warn_without_admin(broker)

    run_with_broker(create, existing=False)


@cli.command("list")
def list_keys() -> None:
    """Print all keys, newest first, without their secrets."""
    from app.http.pagination import PageParams
    from app.http.schema_types import value_or

    def line(key: "ApiKey", now: "datetime") -> str:
        used, expires = value_or(key.last_used_at, None), value_or(key.expires_at, None)
        state = "revoked" if value_or(key.revoked_at, None) else f"used {used:%Y-%m-%d %H:%M}" if used else "never used"
        expiry = f"  {'expired' if expires <= now else 'expires'} {expires:%Y-%m-%d %H:%M}" if expires else ""
        return f"{key.id}  {key.name}  {' '.join(key.scopes)}  created {key.created_at:%Y-%m-%d}  {state}{expiry}"

    async def show(broker: "Broker") -> None:
        cursor: str | None = None
        while True:
            page = await broker.api_keys.page(PageParams(limit=1000, cursor=cursor))
            if cursor is None and not page.items:
                print("longshore: there is no API key, so callers need none", file=sys.stderr)
            for key in page.items:
                print(line(key, broker.infra.now()))
            cursor = value_or(page.next_cursor, None)
            if cursor is None:
                return

    run_with_broker(show)


@cli.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `keys list` prints it.")],
) -> None:
    """Revoke a key permanently; brokers reject it within 250 ms."""

    async def revoke(broker: "Broker") -> None:
        revoked = await broker.api_keys.revoke(key_id, CALLER)
        print(f"{revoked.id} ({revoked.name}) is revoked")
        await warn_without_admin(broker)

    run_with_broker(revoke)
