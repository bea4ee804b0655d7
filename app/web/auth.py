"""At the door of every route: who calls, whether the scope is there, and whether what the path names is theirs to reach."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, Request

from app.errors import Forbidden
from app.web.access import ANYBODY, Access, Caller, Scope


class Doorkeeper(Protocol):
    async def admit(self, authorization: str | None) -> Caller:
        """Raises Unauthenticated for no valid key, RateLimited for one that asks too often."""
        ...


# Raises if what the path names (a job, a queue) is not reached.
Border = Callable[[Access, str, Mapping[str, str]], Awaitable[None]]


def needs(scopes: frozenset[Scope], *, everywhere: bool) -> Any:
    """Runs before the body is read: a stranger's bytes are not worth parsing."""

    async def enter(request: Request) -> None:
        state = request.app.state
        caller: Caller = await state.doorkeeper.admit(request.headers.get("authorization"))
        if caller is ANYBODY:
            _refuse_other_origins(request)
        access = caller.access(scopes)
        if access is None:
            raise Forbidden(f"this key lacks the scope {' or '.join(sorted(scopes))}")
        if not access.everything:
            if everywhere:
                raise Forbidden("this call is for keys that reach every queue")
            await state.border(access, request.url.path, request.path_params)
        request.state.access = access

    return Depends(enter)


def _refuse_other_origins(request: Request) -> None:
    """Where nobody needs a key, a page of somewhere else, open in a browser on this machine, could call in its user's name."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden("a page of another origin may not call a broker that has no keys")


async def _entered(request: Request) -> Access:
    access: Access = request.state.access
    return access


Reach = Annotated[Access, Depends(_entered)]
