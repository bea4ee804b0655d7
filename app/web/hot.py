"""The hot seam: verbs that are called for every job go straight to their function, past the framework's routing, its stack of middleware
and its solver of dependencies. The function, its parameters, its errors and its place in the OpenAPI document are those of any route."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar, get_args

from fastapi import APIRouter, Request, Response, params
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from app import errors
from app.web.headers import request_id, sent_header
from app.web.problems import render, validation_failed

F = TypeVar("F", bound=Callable[..., Any])
Getter = Callable[[Request], Awaitable[object]]

_JOBS, _OF_JOB = "/jobs/", "/jobs/{job_id}/"


class HotRoute(APIRoute):
    """For functions whose parameters are simple: the request, what a dependency without parameters of its own finds, one header, an id
    in the path. Who asks for more is told so when the module is imported."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._call: Callable[..., Awaitable[Response]] = endpoint
        kinds = inspect.get_annotations(endpoint)
        self._getters = [(name, _getter(name, kind, path)) for name, kind in kinds.items() if name != "return"]
        super().__init__(path, endpoint, **options)
        self._door: list[Getter] = [depends.dependency for depends in self.dependencies if depends.dependency is not None]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's way leads to the same place."""
        return self._respond

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        try:
            response = await self._respond(Request(scope, receive))
        except errors.Problem as problem:
            response = render(problem, request_id(scope))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        for enter in self._door:
            await enter(request)
        return await self._call(**{name: await get(request) for name, get in self._getters})


def hot(router: APIRouter, path: str, **contract: Any) -> Callable[[F], F]:
    """Like `router.post`, for a verb that is called for every job."""

    def register(function: F) -> F:
        router.add_api_route(path, function, methods=["POST"], route_class_override=HotRoute, **contract)
        return function

    return register


class Hot:
    """Finds the route of a hot verb by its path alone. Whatever looks different in any way takes the framework's way."""

    def __init__(self, app: ASGIApp, routes: Iterable[HotRoute]) -> None:
        self.app = app
        routes = list(routes)
        self._by_path = {route.path: route for route in routes if "{" not in route.path}
        self._by_verb = {route.path.removeprefix(_OF_JOB): route for route in routes if route.path.startswith(_OF_JOB)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find(scope) if scope["type"] == "http" else None
        if route is None:
            await self.app(scope, receive, send)
        else:
            await route.answer(scope, receive, send)

    def _find(self, scope: Scope) -> HotRoute | None:
        if scope["method"] != "POST" or scope["query_string"]:
            return None
        path: str = scope["path"]
        found, named = self._by_path.get(path), {}
        if found is None and path.startswith(_JOBS):
            job_id, _, verb = path.removeprefix(_JOBS).partition("/")
            found, named = self._by_verb.get(verb) if job_id else None, {"job_id": job_id}
        if found is not None:
            scope["path_params"] = named
        return found


def _getter(name: str, annotation: Any, path: str) -> Getter:
    if annotation is Request:
        return _itself
    for fact in get_args(annotation)[1:]:
        if isinstance(fact, params.Depends) and fact.dependency is not None:
            return _alone(fact.dependency)
        if isinstance(fact, params.Header):
            return _header(name.replace("_", "-"), TypeAdapter(annotation))
    assert f"{{{name}}}" in path, f"a hot route cannot take {name}"
    return _in_path(name, TypeAdapter(annotation))


def _alone(dependency: Callable[..., Any]) -> Getter:
    assert len(inspect.signature(dependency).parameters) == 1, "a dependency of a hot route takes the request and nothing else"
    return dependency


async def _itself(request: Request) -> Request:
    return request


def _header(name: str, kind: TypeAdapter[Any]) -> Getter:
    key = name.encode()

    async def get(request: Request) -> object:
        value = sent_header(request.scope, key)
        return None if value is None else _validated(kind, value, "header", name)

    return get


def _in_path(name: str, kind: TypeAdapter[Any]) -> Getter:
    async def get(request: Request) -> object:
        return _validated(kind, request.scope["path_params"][name], "path", name)

    return get


def _validated(kind: TypeAdapter[Any], value: str, *place: str) -> object:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise validation_failed([{**found, "loc": place} for found in error.errors()]) from None
