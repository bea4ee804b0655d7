"""A request that is there to its last byte, and what can be found in it without waiting for anything."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.params import Depends
from starlette.types import Scope

Getter = Callable[[Any], object]
Finder = Callable[[Request], Awaitable[object]]


class Whole(Request):
    def __init__(self, scope: Scope, data: bytes) -> None:
        super().__init__(scope)
        self.data = data


def itself(request: Request) -> Request:
    return request


@dataclass(frozen=True)
class AtOnce(Depends):
    """A dependency that hot routes get by a call. The framework waits for it: what is no coroutine it would run in a thread."""

    get: Getter = itself

    @property
    def find(self) -> Finder:
        assert self.dependency is not None
        return self.dependency


def at_once(get: Getter, find: Finder | None = None) -> AtOnce:
    """`find` is for requests of which something is still to come."""

    async def wait(request: Request) -> object:
        return get(request)

    return AtOnce(find or wait, get=get)
