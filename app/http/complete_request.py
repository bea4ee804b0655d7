"""A request whose body has arrived, and dependencies that are resolved from it synchronously."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.params import Depends
from starlette.types import Scope

Resolve = Callable[[Any], object]
ResolveAsync = Callable[[Request], Awaitable[object]]


class CompleteRequest(Request):
    """A request with all bytes of its body."""

    def __init__(self, scope: Scope, data: bytes) -> None:
        super().__init__(scope)
        self.data = data


def identity(request: Request) -> Request:
    return request


@dataclass(frozen=True)
class Resolver(Depends):
    """A dependency with two forms: `resolve` for fast routes, and a coroutine for the framework.

    The framework would run a plain function in a thread.
    """

    resolve: Resolve = identity

    @property
    def resolve_async(self) -> ResolveAsync:
        assert self.dependency is not None
        return self.dependency


def resolver(resolve: Resolve, resolve_async: ResolveAsync | None = None) -> Resolver:
    """A dependency. `resolve_async` is for requests whose body has not arrived completely."""

    async def call_resolve(request: Request) -> object:
        return resolve(request)

    return Resolver(resolve_async or call_resolve, resolve=resolve)
