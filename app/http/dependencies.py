"""Dependencies of routes: a parameter has one synchronous function that resolves it.

A service is a parameter too: `Annotated[EnqueueService, service("enqueuer")]`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.params import Depends

Resolve = Callable[[Request], Any]


@dataclass(frozen=True)
class Resolver(Depends):
    """A parameter. Fast routes call `resolve`; the framework awaits `dependency`, which calls it.

    The framework would run a plain function in a thread.
    """

    resolve: Resolve = field(kw_only=True)


def resolver(resolve: Resolve) -> Resolver:
    async def dependency(request: Request) -> Any:
        return resolve(request)

    return Resolver(dependency, resolve=resolve)


def service(name: str) -> Any:
    """A dependency: the service that has this name in `app.broker.Broker`."""

    def get(request: Request) -> object:
        return getattr(request.app.state.broker, name)

    return resolver(get)
