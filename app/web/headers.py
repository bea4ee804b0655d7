"""The request headers that rooms read."""

from typing import Annotated

from fastapi import Header, Request

from app.web.shapes import NAME_PATTERN

IdempotencyKey = Annotated[
    str | None,
    Header(pattern=NAME_PATTERN, description="Repeat the call with the same key to get the same answer instead of a second effect."),
]

_TRACE = ("traceparent", "tracestate")


def trace_of(request: Request) -> dict[str, str]:
    """W3C trace context, stored on the job and handed out on claim. What is too long to be one is left out."""
    return {name: request.headers[name] for name in _TRACE if name in request.headers and len(request.headers[name]) <= 512}
