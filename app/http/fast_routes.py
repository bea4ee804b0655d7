"""Fast routes: operations that are called for every job, dispatched from the connection.

A fast route bypasses ASGI, the framework's routing, its middleware and its dependency solver. Its
function, parameters, errors and OpenAPI entry are like those of any other route. A request that is
unusual in any way takes the framework's path to the same function.
"""

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
from app.http.complete_request import CompleteRequest, Resolve, ResolveAsync, Resolver, identity, resolver
from app.http.headers import get_header
from app.http.middleware import RequestMiddleware
from app.http.parameter_errors import validation_failed
from app.http.problems import render
from app.server.exchange import Exchange

F = TypeVar("F", bound=Callable[..., Any])

_JOBS_PREFIX, _JOB_PREFIX = "/jobs/", "/jobs/{job_id}/"


class FastRoute(APIRoute):
    """A route whose function has simple parameters only.

    A parameter may be the request, a `Resolver`, one header, or an id in the path. Any other
    parameter fails when the module is imported.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._call: Callable[..., Awaitable[Response]] = endpoint
        resolvers = [_resolver_for(parameter, path) for parameter in inspect.signature(endpoint).parameters.values()]
        self._resolve: list[Resolve] = [dependency.resolve for dependency in resolvers]
        self._resolve_async: list[ResolveAsync] = [dependency.resolve_async for dependency in resolvers]
        super().__init__(path, endpoint, **options)
        self._checks: list[ResolveAsync] = [
            depends.dependency for depends in self.dependencies if depends.dependency is not None
        ]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.handle_streaming

    async def handle_streaming(self, request: Request) -> Response:
        """Handles a request whose body is still arriving.

        It waits for the body after the access check.
        """
        for check in self._checks:
            await check(request)
        return await self._call(*[await resolve(request) for resolve in self._resolve_async])

    async def handle_complete(self, request: CompleteRequest) -> Response:
        """Handles a request whose body has arrived: it waits for nothing but the access check."""
        for check in self._checks:
            await check(request)
        return await self._call(*[resolve(request) for resolve in self._resolve])


def fast_route(router: APIRouter, path: str, **options: Any) -> Callable[[F], F]:
    """Like `router.post`, for an operation that is called for every job."""

    def register(function: F) -> F:
        router.add_api_route(path, function, methods=["POST"], route_class_override=FastRoute, **options)
        return function

    return register


class FastRouter:
    """Finds the fast route of a request by its path alone, and handles the request."""

    def __init__(self, app: FastAPI, middleware: RequestMiddleware, routes: Iterable[FastRoute]) -> None:
        self._app = app
        self._middleware = middleware
        routes = list(routes)
        self._by_path = {route.path: route for route in routes if "{" not in route.path}
        self._by_verb = {
            route.path.removeprefix(_JOB_PREFIX): route for route in routes if route.path.startswith(_JOB_PREFIX)
        }

    def match(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """A coroutine that handles the request, or None if no fast route matches."""
        route = self._find_route(exchange.asgi_scope)
        return None if route is None else self._handle(route, exchange)

    def _find_route(self, scope: Scope) -> FastRoute | None:
        if scope["method"] != "POST" or scope["query_string"]:
            return None
        path: str = scope["path"]
        route, path_params = self._by_path.get(path), {}
        if route is None and path.startswith(_JOBS_PREFIX):
            job_id, _, verb = path.removeprefix(_JOBS_PREFIX).partition("/")
            route, path_params = self._by_verb.get(verb) if job_id else None, {"job_id": job_id}
        if route is not None:
            scope["path_params"] = path_params
        return route

    async def _handle(self, route: FastRoute, exchange: Exchange) -> None:
        started = time.perf_counter()
        scope = exchange.asgi_scope
        scope["app"] = self._app
        request_id = self._middleware.begin(scope)
        try:
            if exchange.more_body:
                response = await route.handle_streaming(Request(scope, cast(Receive, exchange.receive)))
            else:
                response = await route.handle_complete(CompleteRequest(scope, bytes(exchange.body)))
        except errors.Problem as problem:
            response = render(problem, request_id)
        except Exception as error:
            response = self._middleware.internal_error(error, request_id)
        except asyncio.CancelledError:  # the server stops and no longer waits for requests
            response = render(
                errors.DatabaseUnavailable("the broker stopped before the request was done", "unknown"), request_id
            )
        await exchange.send_response(
            response.status_code, [*response.raw_headers, *self._middleware.headers(request_id)], bytes(response.body)
        )
        self._middleware.finish(scope, route.name, response.status_code, time.perf_counter() - started)


def _resolver_for(parameter: inspect.Parameter, path: str) -> Resolver:
    name, kind = parameter.name, parameter.annotation
    assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, f"fast routes pass parameters by position: {name}"
    if kind is Request:
        return resolver(identity)
    for annotation in get_args(kind)[1:]:
        if isinstance(annotation, Resolver):
            return annotation
        if isinstance(annotation, params.Header):
            return resolver(_from_header(name.replace("_", "-"), TypeAdapter(kind)))
    assert f"{{{name}}}" in path, f"parameter of a fast route not supported: {name}"
    return resolver(_from_path(name, TypeAdapter(kind)))


def _from_header(name: str, kind: TypeAdapter[Any]) -> Resolve:
    key = name.encode()

    def resolve(request: Request) -> object:
        value = get_header(request.scope, key)
        return None if value is None else _validate(kind, value, "header", name)

    return resolve


def _from_path(name: str, kind: TypeAdapter[Any]) -> Resolve:
    def resolve(request: Request) -> object:
        return _validate(kind, request.scope["path_params"][name], "path", name)

    return resolve


def _validate(kind: TypeAdapter[Any], value: str, *location: str) -> object:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise validation_failed([{**found, "loc": location} for found in error.errors()]) from None
