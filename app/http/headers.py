"""What rooms read of a request beside its body: headers, the request id, and that no parameter is unknown."""

from collections import Counter
from typing import Annotated

from fastapi import Header, Request
from fastapi.routing import APIRoute
from starlette.types import Scope

from app.errors import Fault, ValidationFailed

KEY_PATTERN = r"^[A-Za-z0-9._:-]{1,120}$"
KEY_RULE = "1 to 120 of the characters A-Z a-z 0-9 . _ : -"

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=KEY_PATTERN,
        description="Repeat the call with the same key to get the same answer instead of a second effect.",
    ),
]

_TRACE = frozenset([b"traceparent", b"tracestate"])


def sent_header(scope: Scope, name: bytes) -> str | None:
    """The first of that name, which is in lower case like all names in a scope."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def trace_of(request: Request) -> dict[str, str]:
    """W3C trace context, stored on the job and handed out on claim. What is too long to be one is left out."""
    return {
        str(name, "latin-1"): str(value, "latin-1")
        for name, value in request.scope["headers"]
        if name in _TRACE and len(value) <= 512
    }


async def refuse_unknown_parameters(request: Request) -> None:
    """For routes that take none: `POST /jobs/cancel?dry_run=true` must not cancel. Others refuse unknown ones by their model; probes may
    carry what they like."""
    if not request.scope["query_string"]:
        return
    names = [name for name, _ in request.query_params.multi_items()]
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and not route.dependant.query_params:
        raise ValidationFailed.at(
            f"/query/{next(iter(names), '')}", "this call takes no query parameters", "unknown_field"
        )
    _refuse_repeated(names)


def _refuse_repeated(names: list[str]) -> None:
    """No parameter takes several values: one of `state=ready&state=scheduled` would be lost."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        detail = "this parameter takes one value; send it once"
        raise ValidationFailed(detail, faults=[Fault(f"/query/{name}", "repeated", detail) for name in repeated])


def request_id(scope: Scope) -> str:
    found: str = scope["state"]["request_id"]
    return found
