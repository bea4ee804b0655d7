"""Rejects unknown and repeated query parameters, and converts pydantic's errors about path, query
and header parameters to faults, worded like the faults in bodies."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.routing import APIRoute

from app.errors import Fault, ValidationFailed, raise_for_faults
from app.http.body_errors import unknown_field_detail
from app.http.headers import KEY_PATTERN, KEY_RULE
from app.http.json_pointer import EMPTY_NAME
from app.http.schema_types import NAME_PATTERN, NAME_RULE

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # a byte that is not UTF-8, decoded with surrogateescape
_LOST_PLUS = re.compile(r"\d \d\d:\d\d$", re.ASCII)
_CODES = {"extra_forbidden": "unknown_field", "missing": "missing"}
_DETAILS = {
    "missing": "{name} is required",
    "bool_parsing": "{name} must be true or false",
    "uuid_parsing": "{name} must be a UUID",
    "greater_than_equal": "{name} must be at least {ge:g}",
    "less_than_equal": "{name} must be at most {le:g}",
    "string_too_short": "{name} must have at least {min_length} characters",
    "string_too_long": "{name} must have at most {max_length} characters",
    "value_error": "{name} {error}{hint}",
}
_PATTERNS = {
    NAME_PATTERN: NAME_RULE,
    KEY_PATTERN: KEY_RULE,
    r"^[0-9a-f]{16}$": "the id of an API key: 16 hexadecimal digits (0-9 a-f)",
}


async def reject_unknown_parameters(request: Request) -> None:
    """Rejects query parameters on a route that takes none, and repeated parameters on any route.

    For example, `POST /jobs/cancel?dry_run=true` must not cancel jobs: `dry_run` belongs in the
    body. If a route takes parameters, the model of its parameters rejects unknown ones. Public
    routes and /metrics do not call this function, so they accept any parameter.
    """
    if not request.scope["query_string"]:
        return
    names = [name for name, _ in request.query_params.multi_items()]
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and not route.dependant.query_params:
        detail = "this call takes no query parameters"
        raise_for_faults(Fault(f"/query/{name}", "unknown_field", detail) for name in dict.fromkeys(names) or [""])
    _reject_invalid_utf8(request.scope["query_string"])
    _reject_repeated(names)


def _reject_invalid_utf8(query: bytes) -> None:
    """Rejects percent escapes that are not UTF-8. The framework replaces them by U+FFFD, and the
    parameter would match data with that character."""
    if b"%" not in query:
        return
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
    invalid = [_replace_invalid(name) for name, value in pairs if _ESCAPED_BYTE.search(name + value)]
    raise_for_faults(
        Fault(f"/query/{name}", "invalid", f"{name or EMPTY_NAME} must be UTF-8 in percent escapes") for name in invalid
    )


def _replace_invalid(text: str) -> str:
    """Replaces bytes that are not UTF-8, so that an error can show the text."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _reject_repeated(names: list[str]) -> None:
    """Rejects repeated parameters, because all but one value would be ignored, for example one of
    `state=ready&state=scheduled`."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise_for_faults(
            Fault(f"/query/{name}", "repeated", f"{name or EMPTY_NAME} takes one value: send it once")
            for name in repeated
        )


def validation_failed(errors: Sequence[Mapping[str, Any]], known: Iterable[str] = ()) -> ValidationFailed:
    """Builds one problem from pydantic's errors. `known` are the names of the operation's
    parameters: the error for an unknown parameter suggests the most similar known name."""
    return ValidationFailed.of([_fault(error, list(known)) for error in errors])


def _fault(error: Mapping[str, Any], known: list[str]) -> Fault:
    steps = [str(step) for step in error["loc"]]
    return Fault("/" + "/".join(steps), _CODES.get(error["type"], "invalid"), _detail(error, steps[-1], known))


def _detail(error: Mapping[str, Any], name: str, known: list[str]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_field_detail(name, known).replace("field", "parameter", 1)
    if kind == "enum":
        options: str = context["expected"].replace(" or ", ", ").replace("'", "")
        return f"{name} must be one of {options}"
    if kind == "string_pattern_mismatch":
        rule = _PATTERNS.get(context["pattern"])
        return f"{name} must be {rule}" if rule else f"{name} must match {context['pattern']}"
    if kind in _DETAILS:
        return _DETAILS[kind].format(name=name, hint=_plus_hint(error["input"]), **context)
    return f"{name} is invalid"


def _plus_hint(value: object) -> str:
    """Returns a hint if the value is an instant with a space instead of the plus in its UTC offset.
    A plus in a query string means a space."""
    lost = isinstance(value, str) and _LOST_PLUS.search(value)
    return "; in a URL, write the plus of a UTC offset as %2B" if lost else ""
