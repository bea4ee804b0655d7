"""Checks the read-only members in the body of a PUT or PATCH. Such members are in the body of a
caller that edits the response of a GET and sends all of it back.

A member is read-only if the response model has it and the request model does not. The broker
ignores a read-only member that has the current value. It rejects a read-only member with another
value, because the caller may expect that the value is stored. There are two exceptions:

- An advancing member changes without a call, such as the next run of a schedule. A value earlier
  than the current value may come from an earlier GET, so only a later value is rejected.
- A pause-dependent member is ignored if the resource was paused or resumed after the caller's GET,
  or if this request pauses or resumes it.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from app.errors import Fault, NotFound, ValidationFailed, raise_for_faults
from app.http import instants

T = TypeVar("T")


class EditedBody(Generic[T]):
    """The body of a PUT or PATCH, and the read-only members in it.

    `problem` has the errors of an invalid body. `read_only_faults` raises them together with the
    errors of the read-only members.
    """

    def __init__(
        self,
        body: T | None,
        problem: ValidationFailed | None,
        read_only: dict[str, Raw],
        advancing_members: Collection[str] = (),
        pause_dependent_members: Collection[str] = (),
    ) -> None:
        self._body = body
        self._problem = problem
        self._read_only = read_only
        self._advancing_members = advancing_members
        self._pause_dependent_members = pause_dependent_members

    @property
    def body(self) -> T:
        assert self._body is not None, "read_only_faults raises for an invalid body"
        return self._body

    async def read_only_faults(
        self, get: Callable[[], Awaitable[Struct]], *, members_if_missing: dict[str, str] | None = None
    ) -> list[Fault]:
        """Returns a fault for each read-only member that must be rejected. `get` returns the
        current resource. Raises ValidationFailed for an invalid body.

        `members_if_missing` is for a PUT that may create the resource. If `get` raises NotFound,
        the read-only members in `members_if_missing` are compared with their values there, and all
        others are ignored. Without `members_if_missing`, NotFound is passed on.
        """
        faults = await self._changed_members(get, members_if_missing) if self._read_only else []
        if self._problem is not None:
            raise_for_faults([*self._problem.faults, *faults], self._problem.fault_count - len(self._problem.faults))
        return faults

    async def _changed_members(
        self, get: Callable[[], Awaitable[Struct]], members_if_missing: dict[str, str] | None
    ) -> list[Fault]:
        try:
            current = msgspec.json.decode(msgspec.json.encode(await get()))
            ignored = self._pause_dependent_members if self._has_pause_changed(current) else ()
            compared = sorted(self._read_only.keys() - ignored)
        except NotFound:
            if members_if_missing is None:
                raise
            current, compared = members_if_missing, sorted(self._read_only.keys() & members_if_missing.keys())
        return [_fault(member) for member in compared if not self._is_unchanged(member, current.get(member, UNSET))]

    def _has_pause_changed(self, current: dict[str, Any]) -> bool:
        """Whether the resource was paused or resumed after the caller's GET, or whether this
        request pauses or resumes it."""
        if getattr(self._body, "paused", UNSET) not in (UNSET, current.get("paused")):
            return True
        if "paused_at" not in self._read_only:
            return False
        return _is_earlier(self._sent("paused_at"), _comparable(current.get("paused_at")))

    def _sent(self, member: str) -> Any:
        return _comparable(msgspec.json.decode(self._read_only[member]))

    def _is_unchanged(self, member: str, current: Any) -> bool:
        sent, current = self._sent(member), _comparable(current)
        is_equal = sent == current and isinstance(sent, bool) is isinstance(current, bool)  # in Python, 1 == True
        return bool(is_equal or (member in self._advancing_members and _is_earlier(sent, current)))


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
