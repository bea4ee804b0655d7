"""Reads headers, and the request id that the dispatcher has stored."""

from typing import Annotated

from fastapi import Header
from starlette.types import Scope

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
    """Returns the value of the first header with this name, or None if there is none. The name must
    be in lower case, like all header names in a scope."""
    value = scope["headers_by_name"].get(name)
    return None if value is None else str(value, "latin-1")


def request_id(scope: Scope) -> str:
    found: str = scope["state"]["request_id"]
    return found
