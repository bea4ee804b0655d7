"""What a route says about itself in the OpenAPI document: the shape it takes, the shapes it gives, the errors it may raise."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Depends

from app import errors
from app.http.authentication import require_scopes
from app.http.authorization import Scope
from app.http.headers import refuse_unknown_parameters
from app.http.problems import Problem

# FastAPI knows nothing of msgspec: routes refer to shapes by name, and web.openapi adds their schemas from here.
MODELS: dict[str, type] = {"Problem": Problem}

SECURITY = "api_key"
NO_KEY: dict[str, list[str]] = {}  # accepted by a broker for which no key was ever created


# Whom a route lets in. One with two scopes is for callers that have either.
OPEN: Sequence[Scope] = ()  # probes and documentation
ENQUEUE = (Scope.ENQUEUE,)
WORK = (Scope.WORK,)
READ = (Scope.READ,)
MANAGE = (Scope.MANAGE,)
ENQUEUE_OR_MANAGE = (Scope.ENQUEUE, Scope.MANAGE)

# Problems that any route with a key, and any route with a body, may return.
KEY_PROBLEMS = (errors.Unauthenticated, errors.Forbidden, errors.ForeignOrigin, errors.RateLimited)
_BODY_PROBLEMS = (errors.MalformedJson, errors.PayloadTooLarge)


def operation(
    shape: type,
    *raised: type[errors.Problem],
    to: Sequence[Scope],
    everywhere: bool = False,
    takes: type | None = None,
    status: int = 200,
    also: dict[int, tuple[str, type]] | None = None,
) -> dict[str, Any]:
    """Arguments for `@router.post(...)`. Every route may also answer with any other problem: that is the `default` response.

    `to` says whom: a route cannot be written without it. `everywhere`: only for keys that reach every queue.
    """
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": _first_sentence(shape), "content": _json(shape)},
        **{code: {"description": text, "content": _json(other)} for code, (text, other) in (also or {}).items()},
    }
    common = (*((*KEY_PROBLEMS, errors.ValidationFailed) if to else ()), *(_BODY_PROBLEMS if takes else ()))
    responses |= problems(*common, *raised)
    extra = {"requestBody": {"required": _needs_body(takes), "content": _json(takes)}} if takes else {}
    door = guarded(to, everywhere=everywhere, **extra)
    if to:  # after the door: a stranger hears nothing of what a call takes
        door["dependencies"].append(Depends(refuse_unknown_parameters))
    return {"status_code": status, "responses": responses, "response_model": None, **door}


def problems(*raised: type[errors.Problem]) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses of a route that raises these problems, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    for error in dict.fromkeys(raised):
        known = responses.setdefault(error.status, {"description": "", "content": _problem(error)})
        known["description"] = "; ".join(filter(None, [known["description"], f"`{error.code}`: {error.title}"]))
    return responses | OTHERWISE


def guarded(to: Sequence[Scope], *, everywhere: bool = False, **extra: Any) -> dict[str, Any]:
    """The door of a route, and how the document tells of it."""
    security = [*({SECURITY: [scope.value]} for scope in to), *([NO_KEY] if to else [])]
    door = [require_scopes(frozenset(to), everywhere=everywhere)] if to else []
    return {"dependencies": door, "openapi_extra": {**extra, "security": security}}


def _json(shape: type) -> dict[str, Any]:
    MODELS[shape.__name__] = shape
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}


def _problem(error: type[errors.Problem]) -> dict[str, Any]:
    example = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": f"{error.title}, in the words of this case",
        "instance": "171dfa6170c7451a8736e468487d31d0",
        "code": error.code,
    }
    return {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}}


OTHERWISE: dict[int | str, dict[str, Any]] = {
    "default": {"description": "Any other problem", "content": _problem(errors.Problem)}
}


def _needs_body(shape: type) -> bool:
    return any(field.required for field in msgspec.structs.fields(shape))


def _first_sentence(shape: type) -> str:
    return (shape.__doc__ or "").split(". ")[0].rstrip(".")
