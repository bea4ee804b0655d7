"""At the door of every route: who calls, whether the scope is there, and whether what the path names is theirs to reach."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from app.errors import Forbidden, ForeignOrigin
from app.http.authorization import ANONYMOUS, Access, Caller, Scope
from app.http.complete_request import resolver
from app.settings import is_loopback


class Authenticator(Protocol):
    async def admit(self, authorization: str | None) -> Caller:
        """Raises Unauthenticated for no valid key, RateLimited for one that asks too often."""
        ...


# Raises if what the path names (a job, a queue) is not reached.
PathCheck = Callable[[Access, str, Mapping[str, str]], Awaitable[None]]


def require_scopes(scopes: frozenset[Scope], *, everywhere: bool) -> Any:
    """Runs before the body is looked at: a stranger's bytes are not worth parsing, and a large body of his is not even waited for."""

    async def enter(request: Request) -> None:
        state = request.app.state
        headers: list[tuple[bytes, bytes]] = request.scope["headers"]
        sent = dict(headers)
        caller: Caller = await state.authenticator.admit(_authorization(sent, headers))
        if caller is ANONYMOUS and _is_browser(sent):
            _refuse_other_origins(sent, state.settings.host)
        access = caller.access(scopes)
        if access is None:
            raise Forbidden(f"this key lacks the scope {' or '.join(sorted(scopes))}")
        if not access.everything:
            if everywhere:
                raise Forbidden("this call is for keys that reach every queue")
            await state.border(access, request.scope["path"], request.path_params)
        request.scope["state"]["access"] = access

    return Depends(enter)


def _authorization(sent: Mapping[bytes, bytes], headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """One, or none: of two, a proxy before us may have looked at the other."""
    key = sent.get(b"authorization")
    return (
        str(key, "latin-1") if key is not None and sum(name == b"authorization" for name, _ in headers) == 1 else None
    )


def _refuse_other_origins(sent: Mapping[bytes, bytes], own_host: str) -> None:
    """Where nobody needs a key, a page of somewhere else, open in a browser on this machine, could call in its user's name; also under a
    name of its own that leads to us."""
    origin, host = sent.get(b"origin"), sent.get(b"host", b"")
    if sent.get(b"sec-fetch-site") in (b"cross-site", b"same-site") or origin not in (
        None,
        b"http://" + host,
        b"https://" + host,
    ):
        raise ForeignOrigin(
            "the request comes from a page of another origin: create an API key, and send it with the request"
        )
    if is_loopback(own_host) and not is_loopback(_name(str(host, "latin-1"))):
        raise ForeignOrigin("the Host header is not a name of this machine: use localhost, or create an API key")


def _is_browser(sent: Mapping[bytes, bytes]) -> bool:
    """To go by what a page cannot leave out. Other programs on this machine may call us whatever they like."""
    return b"origin" in sent or b"sec-fetch-site" in sent or b"mozilla" in sent.get(b"user-agent", b"").lower()


def _name(host: str) -> str:
    return host.strip("[]") if host.endswith("]") or ":" not in host else host.rpartition(":")[0].strip("[]")


def _entered(request: Request) -> Access:
    access: Access = request.scope["state"]["access"]
    return access


AccessDep = Annotated[Access, resolver(_entered)]
