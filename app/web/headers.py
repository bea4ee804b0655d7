"""What rooms read of a request beside its body: headers, the request id, and that no parameter is unknown."""

from typing import Annotated

from fastapi import Header, Request
from fastapi.routing import APIRoute
from starlette.types import Scope

from app.errors import ValidationFailed
from app.web.shapes import NAME_PATTERN

IdempotencyKey = Annotated[
    str | None,
    Header(pattern=NAME_PATTERN, description="Repeat the call with the same key to get the same answer instead of a second effect."),
]

_TRACE = ("traceparent", "tracestate")


def trace_of(request: Request) -> dict[str, str]:
    """W3C trace context, stored on the job and handed out on claim. What is too long to be one is left out."""
    return {name: request.headers[name] for name in _TRACE if name in request.headers and len(request.headers[name]) <= 512}


async def refuse_unknown_parameters(request: Request) -> None:
    """For routes that take none: `POST /jobs/cancel?dry_run=true` must not cancel. Others refuse unknown ones by their model; probes may
    carry what they like."""
    route = request.scope.get("route")
    if request.scope["query_string"] and isinstance(route, APIRoute) and not route.dependant.query_params:
        name = next(iter(request.query_params), "")
        raise ValidationFailed.at(f"/query/{name}", "this call takes no query parameters", "unknown_field")


def request_id(scope: Scope) -> str:
    found: str = scope["state"]["request_id"]
    return found
