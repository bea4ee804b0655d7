"""`longshore keys create | list | revoke`: on the database itself, so that the first key can be made."""

from typing import TYPE_CHECKING, Annotated

import typer

from app.terminal import checked, in_the_house

if TYPE_CHECKING:
    from app.api_keys.schemas import ApiKey
    from app.house import House

cli = typer.Typer(help="API keys: make the first one here, others here or with POST /api-keys.", no_args_is_help=True)


@cli.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="Who the caller is. Two live keys may have the same name, so that one can take over.")],
    scope: Annotated[list[str], typer.Option(help="enqueue, work, read or manage, also `work:email.*`. Give it several times.")],
    days: Annotated[float | None, typer.Option(help="How long it lasts; default: until it is revoked.", min=0.001, max=36500)] = None,
    requests_per_second: Annotated[float | None, typer.Option(help="Quota of calls, in each process.")] = None,
    max_leases: Annotated[int | None, typer.Option(help="Quota of leases held at once.")] = None,
) -> None:
    """Make a key and print it, once. From the first key on every call needs one."""
    from datetime import timedelta

    from app.api_keys.schemas import ApiKeyCreate
    from app.web.shapes import or_unset

    async def create(house: "House") -> None:
        wanted = {
            "name": name,
            "scopes": scope,
            "expires_at": or_unset(days and house.floor.now() + timedelta(days=days)),
            "requests_per_second": or_unset(requests_per_second),
            "max_leases": or_unset(max_leases),
        }
        made = await house.issuing.create(checked(ApiKeyCreate, wanted))
        print(made.key)

    in_the_house(create)


@cli.command("list")
def list_keys() -> None:
    """Print all keys, newest first, without their secrets."""
    from app.web.paging import Paging
    from app.web.shapes import given

    def line(key: "ApiKey") -> str:
        used = given(key.last_used_at, None)
        state = "revoked" if given(key.revoked_at, None) else f"used {used:%Y-%m-%d %H:%M}" if used else "never used"
        return f"{key.id}  {key.name}  {' '.join(key.scopes)}  made {key.created_at:%Y-%m-%d}  {state}"

    async def show(house: "House") -> None:
        cursor: str | None = None
        while True:
            page = await house.issuing.page(Paging(limit=1000, cursor=cursor))
            for key in page.items:
                print(line(key))
            cursor = given(page.next_cursor, None)
            if cursor is None:
                return

    in_the_house(show)


@cli.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="Its id, as `keys list` shows it.")],
) -> None:
    """Revoke a key for good; brokers refuse it within a second."""

    async def revoke(house: "House") -> None:
        revoked = await house.issuing.revoke(key_id)
        print(f"{revoked.id} ({revoked.name}) is revoked")

    in_the_house(revoke)
