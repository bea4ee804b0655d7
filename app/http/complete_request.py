"""A request that is there to its last byte, and what can be found in it without waiting for anything."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.params import Depends
from starlette.types import Scope

Getter = Callable[[Any], object]
Finder = Callable[[Request], Awaitable[object]]


class CompleteRequest(Request):
    def __init__(self, scope: Scope, data: bytes) -> None:
        super().__init__(scope)
        self.data = data


def identity(request: Request) -> Request:
    return request


@dataclass(frozen=True)
class Resolver(Depends):
    """A dependency that hot routes get by a call. The framework waits for it: what is no coroutine it would run in a thread."""

    get: Getter = identity

    @property
    def find(self) -> Finder:
        assert self.dependency is not None
        return self.dependency


def resolver(get: Getter, find: Finder | None = None) -> Resolver:
    """`find` is for requests of which something is still to come."""

    async def wait(request: Request) -> object:
        return get(request)

    return Resolver(find or wait, get=get)
