"""Authenticates the caller of a request and checks its access, before the body is read."""

from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import Depends, Request

from app.errors import Forbidden, ForeignOrigin
from app.http.authorization import ANONYMOUS, Access, Caller, KeyScope
from app.http.headers import get_header
from app.settings import is_loopback


class Authenticator(Protocol):
    async def authenticate(self, authorization: str | None) -> Caller:
        """Returns the caller. Raises Unauthenticated if the header has no valid key, or RateLimited
        if the caller exceeds its quota."""
        ...


class PathAccess(Protocol):
    async def check(self, access: Access, path: str, path_params: Mapping[str, str]) -> None:
        """Raises if the caller may not access the job or the queue that the path names."""
        ...


def require_scopes(scopes: frozenset[KeyScope], *, all_queues: bool) -> Any:
    """Returns a dependency for a route, which authenticates the caller and checks its access.

    The key needs one of the scopes and access to the job or queue that the path names; with
    `all_queues` it needs access to all queues. The check runs before the body is read, and before a
    large body has arrived: the broker does no work on the body of an unauthenticated caller.
    """

    async def check_access(request: Request) -> None:
        broker, headers = request.app.state.broker, request.scope["headers_by_name"]
        authenticator: Authenticator = broker.authenticator
        caller = await authenticator.authenticate(get_header(request.scope, b"authorization"))
        if caller is ANONYMOUS and _is_browser(headers):
            _reject_foreign_origin(headers, broker.infra.settings.host)
        access = caller.access_for(scopes)
        if access is None:
            raise Forbidden(f"this API key lacks the scope {' or '.join(sorted(scopes))}")
        if not access.all_queues:
            if all_queues:
                raise Forbidden("this call requires an API key with access to all queues")
            path_access: PathAccess = broker.path_access
            await path_access.check(access, request.scope["path"], request.path_params)
        request.scope["state"]["access"] = access

    return Depends(check_access)


def _reject_foreign_origin(headers: Mapping[bytes, bytes], bind_host: str) -> None:
    """Rejects requests that a browser sends for a page of another site.

    Otherwise any page that a browser on this machine shows could call a broker without API keys, on
    behalf of the user. With DNS rebinding the page's own host name resolves to the broker, so the
    Host header is checked, too.
    """
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") or origin not in (
        None,
        b"http://" + host,
        b"https://" + host,
    ):
        raise ForeignOrigin(
            "the request comes from a page of another origin: create an API key and send it with the request"
        )
    if is_loopback(bind_host) and not is_loopback(_host_name(str(host, "latin-1"))):
        raise ForeignOrigin("the Host header does not name this machine: use localhost, or create an API key")


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser sent the request. Decides by headers that a page cannot remove.

    Only requests of browsers are checked, because other programs on this machine may use any host
    name for the broker.
    """
    return b"origin" in headers or b"sec-fetch-site" in headers or b"mozilla" in headers.get(b"user-agent", b"").lower()


def _host_name(host: str) -> str:
    """Removes the port from a Host header, and the brackets of an IPv6 address."""
    return host.strip("[]") if host.endswith("]") or ":" not in host else host.rpartition(":")[0].strip("[]")
