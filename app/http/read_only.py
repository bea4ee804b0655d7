"""Read-only members in the body of a PUT, for callers that GET a resource, edit it and PUT it.

A member is read-only if the response model has it and the request model has not. The broker ignores
a read-only member with the current value. It rejects one with another value, because the caller may
expect that the value is stored. There are two exceptions:

- An advancing member changes without a call, such as the next run of a schedule. An earlier value
  than the current one may come from an earlier GET, so only a later value is rejected.
- A pause-dependent member is ignored if the resource was paused or resumed after the caller's GET.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from app.errors import Fault, NotFound, raise_for_faults
from app.http import instants

T = TypeVar("T")


class EditedBody(Generic[T]):
    """The body of a PUT, and the read-only members in it."""

    def __init__(
        self, body: T, read_only: dict[str, Raw], advancing: Collection[str], pause_dependent: Collection[str]
    ) -> None:
        self.body = body
        self._read_only = read_only
        self._advancing = advancing
        self._pause_dependent = pause_dependent

    async def check(self, name: str, get: Callable[[], Awaitable[Struct]]) -> None:
        """Rejects read-only members whose value differs from the current one, which `get` returns.

        If `get` raises NotFound, the caller restores a deleted resource: checks only the name.
        """
        if not self._read_only:
            return
        try:
            current = msgspec.json.decode(msgspec.json.encode(await get()))
            ignored = self._pause_dependent if self._has_pause_changed(current) else ()
            compared = sorted(self._read_only.keys() - ignored)
        except NotFound:
            current, compared = {"name": name}, sorted(self._read_only.keys() & {"name"})
        raise_for_faults(
            _fault(member) for member in compared if not self._is_unchanged(member, current.get(member, UNSET))
        )

    def _has_pause_changed(self, current: dict[str, Any]) -> bool:
        """Whether the resource was paused or resumed since the caller's GET, or will be by this
        PUT."""
        if getattr(self.body, "paused", UNSET) not in (UNSET, current.get("paused")):
            return True
        if "paused_at" not in self._read_only:
            return False
        return _is_earlier(self._sent("paused_at"), _comparable(current.get("paused_at")))

    def _sent(self, member: str) -> Any:
        return _comparable(msgspec.json.decode(self._read_only[member]))

    def _is_unchanged(self, member: str, current: Any) -> bool:
        sent, current = self._sent(member), _comparable(current)
        return bool(sent == current or (member in self._advancing and _is_earlier(sent, current)))


def _is_earlier(sent: Any, current: Any) -> bool:
    try:
        return bool(type(sent) is type(current) and sent and sent < current)
    except TypeError:  # lists whose items cannot be compared
        return False


def _comparable(value: Any) -> Any:
    """Parses the instants in a value, because one instant can be written in several ways."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    try:
        return instants.parse(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _fault(member: str) -> Fault:
    return Fault(
        f"/{member}",
        "read_only",
        f"{member} is read-only and has a different value now: omit it, or send the value that GET returns",
    )
