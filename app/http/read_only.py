"""GET, edit, PUT: a caller may send read-only members back unchanged.

Read-only members are those that a response has and its request model has not. The broker ignores an unchanged one and rejects a changed
one, because the caller may expect an effect. Some advance on their own: a second later a schedule may have another next run. For these an
earlier value is what an earlier GET returned, and only a later value is a change. Others depend on whether the resource is paused: they are
not compared if it was paused or resumed after the caller read it.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from app.errors import Fault, NotFound, refuse
from app.http import instants

T = TypeVar("T")


class Edited(Generic[T]):
    """The body of a PUT, and the read-only members that came with it."""

    def __init__(self, body: T, others: dict[str, Raw], moving: Collection[str], by_pause: Collection[str]) -> None:
        self.body = body
        self._others = others
        self._moving = moving
        self._by_pause = by_pause

    async def check(self, name: str, get: Callable[[], Awaitable[Struct]]) -> None:
        """`get` returns the current state. If it raises NotFound only the name is compared: the caller puts a copy back after a DELETE."""
        if not self._others:
            return
        try:
            now = msgspec.json.decode(msgspec.json.encode(await get()))
            compared = sorted(self._others.keys() - (self._by_pause if self._pause_has_changed(now) else ()))
        except NotFound:
            now, compared = {"name": name}, sorted(self._others.keys() & {"name"})
        refuse(_fault(member) for member in compared if not self._is_unchanged(member, now.get(member, UNSET)))

    def _pause_has_changed(self, now: dict[str, Any]) -> bool:
        """Whether `paused` has changed since the caller's GET, or a later pause has replaced the sent one."""
        if getattr(self.body, "paused", UNSET) not in (UNSET, now.get("paused")):
            return True
        return "paused_at" in self._others and _is_earlier(self._sent("paused_at"), _comparable(now.get("paused_at")))

    def _sent(self, member: str) -> Any:
        return _comparable(msgspec.json.decode(self._others[member]))

    def _is_unchanged(self, member: str, now: Any) -> bool:
        sent, now = self._sent(member), _comparable(now)
        return bool(sent == now or (member in self._moving and _is_earlier(sent, now)))


def _is_earlier(sent: Any, now: Any) -> bool:
    try:
        return bool(type(sent) is type(now) and sent and sent < now)
    except TypeError:  # lists whose items cannot be compared
        return False


def _comparable(value: Any) -> Any:
    """Parses instants, so that they compare by time and not by notation."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    try:
        return instants.read(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _fault(member: str) -> Fault:
    return Fault(
        f"/{member}",
        "read_only",
        f"{member} is read-only and has another value now: leave it out, or send what GET returns now",
    )
