"""How a route gets a service: `Annotated[EnqueueService, service(EnqueueService)]`."""

from typing import Any, TypeVar

from fastapi import FastAPI, Request

from app.http.complete_request import resolver

T = TypeVar("T")


def service(kind: type[T]) -> Any:
    """A dependency: the service of this class that `create_app` has installed."""

    def get(request: Request) -> T:
        found: T = request.app.state.services[kind]
        return found

    return resolver(get)


def install_services(app: FastAPI, *services: object) -> None:
    """Makes the services available to `service`, one of each class."""
    app.state.services = {type(service): service for service in services}
