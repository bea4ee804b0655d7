"""Dependencies of routes: a parameter has one synchronous function that resolves it.

A service is a parameter too: `Annotated[EnqueueService, service(EnqueueService)]`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.params import Depends

T = TypeVar("T")
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


def service(kind: type[T]) -> Any:
    """A dependency: the service of this class that `create_app` has installed."""

    def get(request: Request) -> T:
        found: T = request.app.state.services[kind]
        return found

    return resolver(get)


def install_services(app: FastAPI, *services: object) -> None:
    """Makes the services available to `service`, one of each class."""
    app.state.services = {type(service): service for service in services}
