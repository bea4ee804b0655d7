"""How a route gets a service: `Annotated[EnqueueService, service("enqueuer")]`."""

from typing import Any

from fastapi import Request

from app.http.complete_request import resolver


def service(name: str) -> Any:
    """A dependency: the service that has this name in `app.broker.Broker`."""

    def get(request: Request) -> object:
        return getattr(request.app.state.broker, name)

    return resolver(get)
