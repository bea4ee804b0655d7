"""Builds the OpenAPI document: routes from FastAPI, models from msgspec, examples from files."""

import json
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.http.operation import MODELS, SECURITY
from app.http.schema_types import RequestModel

EXAMPLES = Path(__file__).resolve().parents[2] / "openapi" / "examples"
_METHODS = ("get", "put", "post", "delete", "patch")
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "`Authorization: Bearer <key>`. Each operation lists scopes; the key needs one of them. A scope "
    "may be limited to queues (`work:email.*`). A broker without API keys accepts calls without a key, so every "
    "operation lists `{}` too. Such a broker listens on loopback only, unless configured otherwise. Once the first "
    "key has been created, every call needs one.",
}


def document(app: FastAPI) -> dict[str, Any]:
    """Builds the OpenAPI document of the app."""
    generated = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
    )
    _, models = msgspec.json.schema_components(tuple(MODELS.values()), ref_template="#/components/schemas/{name}")
    for model in _descendants(RequestModel):
        if model.__name__ in models:
            for rule in model.rules:
                models[model.__name__] |= rule.json_schema
    schemas = generated.get("components", {}).get("schemas", {})
    enums = {name: schema for name, schema in schemas.items() if "enum" in schema}
    generated["components"] = {
        "schemas": dict(sorted({**enums, **models}.items())),
        "securitySchemes": {SECURITY: _BEARER},
    }
    for path in generated["paths"].values():
        for method in _METHODS:
            if method in path:
                _complete(path[method])
        if "put" in path:
            path["put"]["requestBody"]["required"] = True  # see `bodies.edited_body`
    cleaned: dict[str, Any] = _clean(generated)
    return cleaned


def _descendants(kind: type[RequestModel]) -> Iterator[type[RequestModel]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)


def _complete(operation: dict[str, Any]) -> None:
    """Adds the examples to an operation. Removes the response HTTPValidationError, which FastAPI
    adds and the broker never returns."""
    operation["responses"] = {
        code: response
        for code, response in operation["responses"].items()
        if "HTTPValidationError" not in str(response)
    }
    for example in examples(operation["operationId"]):
        if "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"].setdefault("example", example["request"]["body"])
        for content in operation["responses"][str(example["answer"]["status"])]["content"].values():
            content["example"] = example["answer"]["body"]


@cache
def examples(operation_id: str) -> list[dict[str, Any]]:
    """Reads the example calls of an operation.

    `<operation_id>.json` is the usual call. A file such as `<operation_id>.207.json` is a call that
    succeeds with another status.
    """
    others = sorted(EXAMPLES.glob(f"{operation_id}.*.json"))
    return [json.loads(path.read_text()) for path in (EXAMPLES / f"{operation_id}.json", *others) if path.exists()]


def _clean(value: Any) -> Any:
    """Changes the document so that client generators understand it.

    Removes nulls, defaults, titles and the indentation of docstrings. Adds the format of numbers
    (int32, double). Replaces `\\Z` in patterns by `$`, because ECMAScript has no `\\Z`.
    """
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "anyOf" in value and {"type": "null"} in value["anyOf"]:
        value = {**_without_null(value["anyOf"]), **{name: item for name, item in value.items() if name != "anyOf"}}
    cleaned = {
        name: item if name == "example" else _clean(item) for name, item in value.items() if not _is_removed(name, item)
    }
    if isinstance(cleaned.get("description"), str):
        cleaned["description"] = cleandoc(cleaned["description"])
    if "pattern" in cleaned and isinstance(cleaned["pattern"], str):
        cleaned["pattern"] = cleaned["pattern"].replace(r"\Z", "$")
    if cleaned.get("type") in ("integer", "number"):
        cleaned.setdefault("format", "int32" if cleaned["type"] == "integer" else "double")
    return cleaned


def _without_null(options: list[dict[str, Any]]) -> dict[str, Any]:
    remaining = [option for option in options if option != {"type": "null"}]
    return remaining[0] if len(remaining) == 1 else {"anyOf": remaining}


def _is_removed(name: str, item: Any) -> bool:
    return (name == "title" and isinstance(item, str) and item != "Longshore") or (
        name == "default" and not isinstance(item, dict)
    )


def install(app: FastAPI) -> None:
    """Makes the app serve the result of `document` instead of the document that FastAPI builds."""

    @cache
    def openapi() -> dict[str, Any]:
        return document(app)

    app.openapi = openapi  # type: ignore[method-assign]
