"""The hot seam: verbs that are called for every job go straight from the connection to their function, past ASGI, the framework's routing,
its stack of middleware and its solver of dependencies. The function, its parameters, its errors and its place in the OpenAPI document are
those of any route; what looks different in any way takes the framework's way to the same function."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast, get_args

from fastapi import APIRouter, FastAPI, Request, Response, params
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope

from app import errors
from app.http.complete_request import CompleteRequest, Finder, Getter, Resolver, identity, resolver
from app.http.headers import sent_header
from app.http.middleware import RequestMiddleware
from app.http.parameter_errors import validation_failed
from app.http.problems import render
from app.server.exchange import Exchange

F = TypeVar("F", bound=Callable[..., Any])

_JOBS, _OF_JOB = "/jobs/", "/jobs/{job_id}/"


class FastRoute(APIRoute):
    """For functions whose parameters are simple: the request, what a dependency finds without waiting, one header, an id in the path. Who
    asks for more is told so when the module is imported."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._call: Callable[..., Awaitable[Response]] = endpoint
        params = [_asked(parameter, path) for parameter in inspect.signature(endpoint).parameters.values()]
        self._getters: list[Getter] = [one.get for one in params]
        self._finders: list[Finder] = [one.find for one in params]
        super().__init__(path, endpoint, **options)
        self._door: list[Finder] = [
            depends.dependency for depends in self.dependencies if depends.dependency is not None
        ]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.handle_streaming

    async def handle_streaming(self, request: Request) -> Response:
        """What is still to come is waited for, when the caller has been let in."""
        for enter in self._door:
            await enter(request)
        return await self._call(*[await find(request) for find in self._finders])

    async def answer(self, request: CompleteRequest) -> Response:
        for enter in self._door:
            await enter(request)
        return await self._call(*[get(request) for get in self._getters])


def fast_route(router: APIRouter, path: str, **contract: Any) -> Callable[[F], F]:
    """Like `router.post`, for a verb that is called for every job."""

    def register(function: F) -> F:
        router.add_api_route(path, function, methods=["POST"], route_class_override=FastRoute, **contract)
        return function

    return register


class FastRouter:
    """Finds the route of a hot verb by its path alone, and answers in its name."""

    def __init__(self, app: FastAPI, envelope: RequestMiddleware, routes: Iterable[FastRoute]) -> None:
        self._app = app
        self._envelope = envelope
        routes = list(routes)
        self._by_path = {route.path: route for route in routes if "{" not in route.path}
        self._by_verb = {route.path.removeprefix(_OF_JOB): route for route in routes if route.path.startswith(_OF_JOB)}

    def takes(self, cycle: Exchange) -> Coroutine[Any, Any, None] | None:
        """The answer, if it is for one of us to give."""
        route = self._find(cycle.params)
        return None if route is None else self._answer(route, cycle)

    def _find(self, scope: Scope) -> FastRoute | None:
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

    async def _answer(self, route: FastRoute, cycle: Exchange) -> None:
        started = time.perf_counter()
        scope = cycle.params
        scope["app"] = self._app
        name = self._envelope.open(scope)
        try:
            if cycle.more_body:
                response = await route.handle_streaming(Request(scope, cast(Receive, cycle.receive)))
            else:
                response = await route.answer(CompleteRequest(scope, bytes(cycle.body)))
        except errors.Problem as problem:
            response = render(problem, name)
        except Exception as error:
            response = self._envelope.failure(error, name)
        except asyncio.CancelledError:  # the server stops and waits for nobody any more
            response = render(errors.DatabaseUnavailable("the broker stops before this is done", "unknown"), name)
        await cycle.send_response(
            response.status_code, [*response.raw_headers, *self._envelope.headers(name)], bytes(response.body)
        )
        self._envelope.close(scope, route.name, response.status_code, time.perf_counter() - started)


def _asked(parameter: inspect.Parameter, path: str) -> Resolver:
    name, kind = parameter.name, parameter.annotation
    assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, (
        f"a hot route is called by the order of its parameters: {name}"
    )
    if kind is Request:
        return resolver(identity)
    for fact in get_args(kind)[1:]:
        if isinstance(fact, Resolver):
            return fact
        if isinstance(fact, params.Header):
            return resolver(_header(name.replace("_", "-"), TypeAdapter(kind)))
    assert f"{{{name}}}" in path, f"a hot route cannot take {name}"
    return resolver(_in_path(name, TypeAdapter(kind)))


def _header(name: str, kind: TypeAdapter[Any]) -> Getter:
    key = name.encode()

    def get(request: Request) -> object:
        value = sent_header(request.scope, key)
        return None if value is None else _validated(kind, value, "header", name)

    return get


def _in_path(name: str, kind: TypeAdapter[Any]) -> Getter:
    def get(request: Request) -> object:
        return _validated(kind, request.scope["path_params"][name], "path", name)

    return get


def _validated(kind: TypeAdapter[Any], value: str, *place: str) -> object:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise validation_failed([{**found, "loc": place} for found in error.errors()]) from None
