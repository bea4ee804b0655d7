"""Describes an operation: its models, its errors, its scopes.

`app.http.openapi` builds the OpenAPI document from these descriptions.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Depends

from app import errors
from app.http.authorization import KeyScope, require_scopes
from app.http.parameter_errors import reject_unknown_parameters
from app.http.problems import Problem

# The models of all operations, by name. FastAPI does not know msgspec: a route refers to a model by
# its name, and `app.http.openapi` adds the schema.
MODELS: dict[str, type] = {"Problem": Problem}

SECURITY = "api_key"
NO_KEY: dict[str, list[str]] = {}  # the security requirement of a broker without API keys


# The scopes of a route. A key needs one of them.
PUBLIC: Sequence[KeyScope] = ()  # health checks and documentation need no key
ENQUEUE = (KeyScope.ENQUEUE,)
WORK = (KeyScope.WORK,)
READ = (KeyScope.READ,)
MANAGE = (KeyScope.MANAGE,)
ENQUEUE_OR_MANAGE = (KeyScope.ENQUEUE, KeyScope.MANAGE)

# Problems that any route that requires a key, and any route with a body, may return.
KEY_PROBLEMS = (errors.Unauthenticated, errors.Forbidden, errors.ForeignOrigin, errors.RateLimited)
_BODY_PROBLEMS = (errors.MalformedJson, errors.PayloadTooLarge)


def operation(
    response: type,
    *raised: type[errors.Problem],
    scopes: Sequence[KeyScope],
    all_queues: bool = False,
    body: type | None = None,
    status: int = 200,
    other_responses: dict[int, tuple[str, type]] | None = None,
) -> dict[str, Any]:
    """Returns the arguments for `@router.post(...)`: the route's entry in the OpenAPI document, and
    its checks.

    `raised` are the problems of this route that the document lists, besides those of every route
    with a key or a body. The route may return any other problem, too; the document describes these
    as the `default` response. `scopes` has no default value, so that no route is public by mistake.
    `all_queues`: the key needs access to all queues.
    """
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": _first_sentence(response), "content": _json(response)},
        **{
            code: {"description": text, "content": _json(model)}
            for code, (text, model) in (other_responses or {}).items()
        },
    }
    common = (*((*KEY_PROBLEMS, errors.ValidationFailed) if scopes else ()), *(_BODY_PROBLEMS if body else ()))
    responses |= problems(*common, *raised)
    extra = {"requestBody": {"required": _needs_body(body), "content": _json(body)}} if body else {}
    options = require_key(scopes, all_queues=all_queues, **extra)
    if scopes:  # after authentication: an unauthenticated caller learns nothing about parameters
        options["dependencies"].append(Depends(reject_unknown_parameters))
    return {"status_code": status, "responses": responses, "response_model": None, **options}


def problems(*raised: type[errors.Problem]) -> dict[int | str, dict[str, Any]]:
    """Returns the OpenAPI responses, by status, for the problems that a route raises."""
    responses: dict[int | str, dict[str, Any]] = {}
    for error in dict.fromkeys(raised):
        response = responses.setdefault(error.status, {"description": "", "content": _problem(error)})
        response["description"] = "; ".join(filter(None, [response["description"], f"`{error.code}`: {error.title}"]))
    return responses | DEFAULT_RESPONSE


def require_key(scopes: Sequence[KeyScope], *, all_queues: bool = False, **extra: Any) -> dict[str, Any]:
    """Returns the arguments for a route that requires a key with one of these scopes: the check,
    and `security` for the OpenAPI document. A route without scopes is public."""
    security = [*({SECURITY: [scope.value]} for scope in scopes), *([NO_KEY] if scopes else [])]
    checks = [require_scopes(frozenset(scopes), all_queues=all_queues)] if scopes else []
    return {"dependencies": checks, "openapi_extra": {**extra, "security": security}}


def _json(model: type) -> dict[str, Any]:
    MODELS[model.__name__] = model
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}


def _problem(error: type[errors.Problem]) -> dict[str, Any]:
    example = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": f"{error.title}: a sentence about this case",
        "instance": "171dfa6170c7451a8736e468487d31d0",
        "code": error.code,
    }
    return {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}}


DEFAULT_RESPONSE: dict[int | str, dict[str, Any]] = {
    "default": {"description": "Any other problem", "content": _problem(errors.Problem)}
}


def _needs_body(model: type) -> bool:
    return any(field.required for field in msgspec.structs.fields(model))


def _first_sentence(model: type) -> str:
    doc = " ".join((model.__doc__ or "").split())
    return doc.split(". ")[0].rstrip(".")
