"""The OpenAPI document: what FastAPI knows of the routes, msgspec of the shapes, and openapi/examples of real calls."""

import json
from collections.abc import Iterator
from functools import cache
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
    "description": "`Authorization: Bearer <key>`. An operation names the scopes of which the key needs one; a scope may be limited to "
    "queues (`work:email.*`). A broker for which no key was ever created needs none, so every operation lists `{}` too. It listens on "
    "loopback only, unless it is configured otherwise. From the first key on every call needs one.",
}


def document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
    )
    _, shapes = msgspec.json.schema_components(tuple(MODELS.values()), ref_template="#/components/schemas/{name}")
    for shape in _descendants(RequestModel):
        if shape.__name__ in shapes:
            shapes[shape.__name__] |= shape.json_schema
    enums = {name: schema for name, schema in made.get("components", {}).get("schemas", {}).items() if "enum" in schema}
    made["components"] = {"schemas": dict(sorted({**enums, **shapes}.items())), "securitySchemes": {SECURITY: _BEARER}}
    for path in made["paths"].values():
        for method in _METHODS:
            if method in path:
                _finish(path[method])
        if "put" in path:
            path["put"]["requestBody"]["required"] = True  # see web.bodies
    tidy: dict[str, Any] = _tidied(made)
    return tidy


def _descendants(kind: type[RequestModel]) -> Iterator[type[RequestModel]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)


def _finish(operation: dict[str, Any]) -> None:
    operation["responses"] = {
        code: given for code, given in operation["responses"].items() if "HTTPValidationError" not in str(given)
    }
    for example in examples(operation["operationId"]):
        if "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"].setdefault("example", example["request"]["body"])
        for content in operation["responses"][str(example["answer"]["status"])]["content"].values():
            content["example"] = example["answer"]["body"]


@cache
def examples(operation_id: str) -> list[dict[str, Any]]:
    """The usual call, `<operation_id>.json`, and others whose success has another status: `<operation_id>.207.json`."""
    others = sorted(EXAMPLES.glob(f"{operation_id}.*.json"))
    return [json.loads(path.read_text()) for path in (EXAMPLES / f"{operation_id}.json", *others) if path.exists()]


def _tidied(value: Any) -> Any:
    """What makes generated clients clean: no nulls, no defaults, no titles, sized numbers; and ECMA's spelling of a pattern's end."""
    if isinstance(value, list):
        return [_tidied(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "anyOf" in value and {"type": "null"} in value["anyOf"]:
        value = {**_without_null(value["anyOf"]), **{name: item for name, item in value.items() if name != "anyOf"}}
    tidy = {
        name: item if name == "example" else _tidied(item) for name, item in value.items() if not _unwanted(name, item)
    }
    if "pattern" in tidy and isinstance(tidy["pattern"], str):
        tidy["pattern"] = tidy["pattern"].replace(r"\Z", "$")
    if tidy.get("type") in ("integer", "number"):
        tidy.setdefault("format", "int32" if tidy["type"] == "integer" else "double")
    return tidy


def _without_null(options: list[dict[str, Any]]) -> dict[str, Any]:
    left = [option for option in options if option != {"type": "null"}]
    return left[0] if len(left) == 1 else {"anyOf": left}


def _unwanted(name: str, item: Any) -> bool:
    return (name == "title" and isinstance(item, str) and item != "Longshore") or (
        name == "default" and not isinstance(item, dict)
    )


def install(app: FastAPI) -> None:
    @cache
    def openapi() -> dict[str, Any]:
        return document(app)

    app.openapi = openapi  # type: ignore[method-assign]
