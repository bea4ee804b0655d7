"""Reads headers, and rejects unknown or repeated query parameters."""

from collections import Counter
from typing import Annotated

from fastapi import Header, Request
from fastapi.routing import APIRoute
from starlette.types import Scope

from app.errors import Fault, raise_for_faults

KEY_PATTERN = r"^[A-Za-z0-9._:-]{1,120}$"
KEY_RULE = "1 to 120 of the characters A-Z a-z 0-9 . _ : -"

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=KEY_PATTERN,
        description="Makes retries safe: a call repeated with the same key returns the first response "
        "and has no second effect.",
    ),
]


def get_header(scope: Scope, name: bytes) -> str | None:
    """Returns the value of the first header of this name; None if there is none. The name is in
    lower case, like all names in a scope."""
    value = scope["headers_by_name"].get(name)
    return None if value is None else str(value, "latin-1")


async def reject_unknown_parameters(request: Request) -> None:
    """Rejects query parameters on a route that takes none, and repeated parameters on any route.

    `POST /jobs/cancel?dry_run=true` must not cancel. If a route takes parameters, their model
    rejects unknown ones. Health checks and documentation do not call this, and accept any
    parameter.
    """
    if not request.scope["query_string"]:
        return
    names = [name for name, _ in request.query_params.multi_items()]
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and not route.dependant.query_params:
        detail = "this call takes no query parameters"
        raise_for_faults(Fault(f"/query/{name}", "unknown_field", detail) for name in dict.fromkeys(names) or [""])
    _reject_repeated(names)


def _reject_repeated(names: list[str]) -> None:
    """Rejects repeated parameters, because all but one value would be ignored, for example one of
    `state=ready&state=scheduled`."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise_for_faults(
            Fault(f"/query/{name}", "repeated", f"{name} takes one value: send it once") for name in repeated
        )


def request_id(scope: Scope) -> str:
    found: str = scope["state"]["request_id"]
    return found
