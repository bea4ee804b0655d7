"""Authorizes callers by the scopes of their API keys.

A scope can be limited to the queues that match a pattern: `work:email.*`. `require_scopes`
authenticates the caller of a request and checks its access, before the body is read.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from fastapi import Depends, Request

from app.errors import Forbidden, ForeignOrigin, Unauthenticated
from app.http.headers import get_header
from app.settings import is_loopback


class KeyScope(StrEnum):
    ENQUEUE = "enqueue"
    WORK = "work"
    READ = "read"
    MANAGE = "manage"


ADMIN = "admin"  # short for all four scopes, in the request that creates a key
# Rejects the patterns `.` and `..`, because no queue can have these names.
SCOPE_PATTERN = r"^(enqueue|work|read|manage|admin)(:(\.{0,2}[A-Za-z0-9_:*-]|\.{3})[A-Za-z0-9._:*-]{0,119})?$"
SCOPE_RULE = "enqueue, work, read, manage or admin, alone or with a pattern of queue names such as work:email.*"


class Grant(NamedTuple):
    """One scope of a key, for the queues that match a pattern.

    A `*` in the pattern matches any text. A scope without a pattern has the pattern `*`.
    """

    scope: KeyScope
    pattern: str

    @classmethod
    def parse(cls, text: str) -> "Grant":
        scope, _, pattern = text.partition(":")
        return cls(KeyScope(scope), pattern or "*")


def expand_scopes(text: str) -> list[str]:
    """Replaces `admin` by the four scopes, with the same pattern: `admin:email.*` by
    `enqueue:email.*`, `work:email.*` and so on."""
    name, colon, pattern = text.partition(":")
    return [f"{scope}{colon}{pattern}" for scope in KeyScope] if name == ADMIN else [text]


def is_admin(scopes: Iterable[str]) -> bool:
    """Whether a key with these scopes may manage all queues, and therefore create any key."""
    return Grant(KeyScope.MANAGE, "*") in [Grant.parse(scope) for text in scopes for scope in expand_scopes(text)]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Access:
    """The access of one request: the queues for which its key has one of the scopes that the route
    requires.

    `patterns` match the names of these queues. `has_key_ended` returns whether the key has been
    revoked or has expired.
    """

    caller: str
    patterns: frozenset[str]
    max_leases: int | None = None
    has_key_ended: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    all_queues: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all_queues", "*" in self.patterns)

    def check_key_active(self) -> None:
        """Raises Unauthenticated if the key was revoked or has expired while the call waited."""
        if self.has_key_ended():
            raise Unauthenticated("the API key was revoked or has expired while the call waited")

    def allows(self, queue: str) -> bool:
        return self.all_queues or any(_compile_pattern(pattern).fullmatch(queue) for pattern in self.patterns)

    def check(self, queue: str, pointer: str) -> None:
        if not self.allows(queue):
            raise Forbidden.at(pointer, f"this API key has no access to queue {queue}")

    @property
    def sql_regex(self) -> str | None:
        """A regular expression for SQL that matches the names of accessible queues. None if all
        queues are accessible."""
        return (
            None
            if self.all_queues
            else "|".join(f"^{_escape(pattern).replace('*', '.*')}$" for pattern in sorted(self.patterns))
        )


def _escape(pattern: str) -> str:
    """Escapes the dots of a pattern for a regular expression.

    A pattern contains no other character that is special in Python or Postgres, except the star.
    """
    return pattern.replace(".", r"\.")


@lru_cache(maxsize=10_000)
def _compile_pattern(pattern: str) -> "re.Pattern[str]":
    """Compiles a pattern to a regular expression that backtracks only for the last star.

    Each other star becomes an atomic group, together with the text up to the next star. With `.*`
    for each star, comparing `*a*a*a*a*a*a*b` with a name of 60 `a` took 7 s.
    """
    before, star, after = _escape(pattern).rpartition("*")
    first, *others = before.split("*")
    return re.compile("".join([first, *(f"(?>.*?{part})" for part in others), ".*" if star else "", after]))


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller, with the scopes of the key that it has used.

    Keys with the same name belong to one caller, so that a key can be rotated.
    """

    name: str
    grants: frozenset[Grant]
    max_leases: int | None = None
    has_key_ended: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    _access_by_scopes: dict[frozenset[KeyScope], Access | None] = field(default_factory=dict, repr=False, compare=False)

    def access_for(self, scopes: frozenset[KeyScope]) -> Access | None:
        """Returns the caller's access to the queues of any of these scopes. Returns None if the
        caller has none of the scopes."""
        if scopes not in self._access_by_scopes:
            self._access_by_scopes[scopes] = self._access(scopes)
        return self._access_by_scopes[scopes]

    def _access(self, scopes: Collection[KeyScope]) -> Access | None:
        patterns = frozenset(grant.pattern for grant in self.grants if grant.scope in scopes)
        return Access(self.name, patterns, self.max_leases, self.has_key_ended) if patterns else None


def make_caller(
    name: str, scopes: Iterable[str], max_leases: int | None = None, has_key_ended: Callable[[], bool] = _never
) -> Caller:
    return Caller(name, frozenset(map(Grant.parse, scopes)), max_leases, has_key_ended)


ANONYMOUS = make_caller("", KeyScope)  # any caller of a broker that has no API keys
FULL_ACCESS = Access("", frozenset("*"))  # for operations of the broker itself


# Checks of requests


class Authenticator(Protocol):
    async def authenticate(self, authorization: str | None) -> Caller:
        """Returns the caller. Raises Unauthenticated if the header has no valid key, or RateLimited
        if the caller exceeds its quota."""
        ...


class PathAccess(Protocol):
    async def check(self, access: Access, path: str, path_params: Mapping[str, str]) -> None:
        """Raises Forbidden or NotFound if the caller may not access the job or the queue that the
        path names."""
        ...


def require_scopes(scopes: frozenset[KeyScope], *, all_queues: bool) -> Any:
    """Returns a FastAPI dependency that authenticates the caller of a route and checks its access.

    The key needs one of the scopes, and access to the job or queue that the path names. With
    `all_queues`, the key needs access to all queues. The check runs before the body is read, and
    before a large body has arrived: the broker does no work on the body of an unauthenticated
    caller.
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
    """Rejects a request that a browser sends for a page of another origin.

    Without API keys, the broker would otherwise execute calls from any page that a browser on this
    machine shows. With DNS rebinding, the host name of such a page resolves to the broker. So a
    broker that listens on loopback also rejects a Host header that does not name this machine.
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
    """Whether a browser sent the request, judged by headers that a page cannot remove.

    Only requests from browsers are checked, because other programs on this machine may call the
    broker by any host name.
    """
    return b"origin" in headers or b"sec-fetch-site" in headers or b"mozilla" in headers.get(b"user-agent", b"").lower()


def _host_name(host: str) -> str:
    """Removes the port from a Host header, and the brackets of an IPv6 address."""
    return host.strip("[]") if host.endswith("]") or ":" not in host else host.rpartition(":")[0].strip("[]")
