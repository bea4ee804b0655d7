"""The OpenAPI document of the app, and functions that walk through it."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from fastapi import FastAPI

from app.application import create_app
from app.http.openapi import document
from app.settings import Settings

Schema = dict[str, Any]


class Operation(NamedTuple):
    method: str
    path: str
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.spec["operationId"]
        return name

    @property
    def request_schema(self) -> Schema | None:
        """The schema of the request body."""
        body = self.spec.get("requestBody")
        return None if body is None else body["content"]["application/json"]["schema"]

    def bodies(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Everything with content: the request and each response."""
        for content in self.spec.get("requestBody", {}).get("content", {}).values():
            yield "request", content
        for status, response in self.spec["responses"].items():
            for content in response.get("content", {}).values():
                yield status, content


@cache
def app() -> FastAPI:
    return create_app(Settings.model_construct(), "postgresql://")


@cache
def openapi() -> dict[str, Any]:
    return document(app())


@cache
def operations() -> list[Operation]:
    return [
        Operation(method.upper(), path, spec)
        for path, methods in openapi()["paths"].items()
        for method, spec in methods.items()
    ]


def operation(name: str) -> Operation:
    return next(found for found in operations() if found.name == name)


def component(schema: Schema) -> Schema:
    """The component to which a `$ref` points; any other schema unchanged."""
    resolved: Schema = (
        openapi()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    )
    return resolved


def schemas() -> Iterator[tuple[str, Schema]]:
    """Every schema and sub-schema of the document, with its location."""
    for name, schema in openapi()["components"]["schemas"].items():
        yield from _with_sub_schemas(name, schema)
    for found in operations():
        for parameter in found.spec.get("parameters", []):
            yield from _with_sub_schemas(f"{found.name}?{parameter['name']}", parameter["schema"])
        for part, content in found.bodies():
            yield from _with_sub_schemas(f"{found.name} {part}", content.get("schema", {}))


def _with_sub_schemas(location: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield location, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _with_sub_schemas(f"{location}.{name}", inner)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _with_sub_schemas(f"{location}.{name}", schema[name])
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, inner in enumerate(schema.get(name, [])):
            yield from _with_sub_schemas(f"{location}.{name}[{index}]", inner)


def request_components() -> set[str]:
    """The names of all components that a request body refers to."""
    components: set[str] = set()
    remaining = [found.request_schema for found in operations() if found.request_schema is not None]
    while remaining:
        for _, schema in _with_sub_schemas("", remaining.pop()):
            name = schema.get("$ref", "").rsplit("/", 1)[-1]
            if name and name not in components:
                components.add(name)
                remaining.append(component(schema))
    return components
