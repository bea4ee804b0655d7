"""Fast routes: operations that are called for every job, dispatched from the connection.

A fast route bypasses ASGI, the framework's routing, its middleware and its dependency solver. Its
function, parameters, errors and OpenAPI entry are like those of any other route. A request that is
unusual in any way takes the framework's path to the same function.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar, get_args

from fastapi import APIRouter, FastAPI, Request, Response, params
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import Scope

from app.http.dependencies import Resolve, Resolver, resolver
from app.http.headers import get_header
from app.http.large_response import LargeJsonResponse
from app.http.middleware import RequestMiddleware
from app.http.parameter_errors import validation_failed
from app.http.request_body import BodyReader
from app.server.asgi import call_asgi
from app.server.exchange import Exchange

F = TypeVar("F", bound=Callable[..., Any])

_JOBS_PREFIX, _JOB_PREFIX = "/jobs/", "/jobs/{job_id}/"


class FastRoute(APIRoute):
    """A route whose function has simple parameters only.

    A parameter may be the request, a `Resolver`, one header, or an id in the path; one of them is
    the body. Any other parameter fails when the module is imported.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._call: Callable[..., Awaitable[Response]] = endpoint
        resolvers = [_resolver_for(parameter, path) for parameter in inspect.signature(endpoint).parameters.values()]
        (position,) = [index for index, parameter in enumerate(resolvers) if isinstance(parameter, BodyReader)]
        self._read_body: Callable[[Request], Awaitable[Any]] = resolvers[position].dependency  # type: ignore[assignment]
        self._before_body = [parameter.resolve for parameter in resolvers[:position] if isinstance(parameter, Resolver)]
        self._after_body = [parameter.resolve for parameter in resolvers[position:] if isinstance(parameter, Resolver)]
        super().__init__(path, endpoint, **options)
        self._checks = [depends.dependency for depends in self.dependencies if depends.dependency is not None]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.handle_request

    async def handle_request(self, request: Request) -> Response:
        """Checks the head first: a large body may not have arrived yet."""
        for check in self._checks:
            await check(request)
        arguments = [resolve(request) for resolve in self._before_body]
        body = await self._read_body(request)
        return await self._call(*arguments, body, *[resolve(request) for resolve in self._after_body])


def fast_route(router: APIRouter, path: str, **options: Any) -> Callable[[F], F]:
    """Like `router.post`, for an operation that is called for every job."""

    def register(function: F) -> F:
        router.add_api_route(path, function, methods=["POST"], route_class_override=FastRoute, **options)
        return function

    return register


class FastRouter:
    """Finds the fast route of a request by method and path, and handles the request."""

    def __init__(self, app: FastAPI, middleware: RequestMiddleware, routes: Iterable[FastRoute]) -> None:
        self._app = app
        self._middleware = middleware
        by_path = {route.path: route for route in routes}
        self._by_path = {path: route for path, route in by_path.items() if "{" not in path}
        self._by_verb = {
            path.removeprefix(_JOB_PREFIX): route for path, route in by_path.items() if path.startswith(_JOB_PREFIX)
        }

    def handle(self, scope: Scope, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Handles a request by its fast route; by the framework if it has none or has a query."""
        route = self._find_route(scope)
        return call_asgi(self._app, scope, exchange) if route is None else self._call(route, scope, exchange)

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

    async def _call(self, route: FastRoute, scope: Scope, exchange: Exchange) -> None:
        started = time.perf_counter()
        scope["app"] = self._app
        request_id = self._middleware.begin(scope)
        try:
            response = await route.handle_request(Request(scope))
        except (Exception, asyncio.CancelledError) as error:
            response = self._middleware.error_response(error, request_id)
        await exchange.respond(
            response.status_code, [*response.raw_headers, *self._middleware.headers(request_id)], bytes(response.body)
        )
        if isinstance(response, LargeJsonResponse) and exchange.is_answered:
            async for piece in response.pieces():
                await exchange.send_more(piece)
        self._middleware.finish(scope, route.name, response.status_code, time.perf_counter() - started)


def _resolver_for(parameter: inspect.Parameter, path: str) -> Resolver | BodyReader:
    name, kind = parameter.name, parameter.annotation
    assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, f"fast routes pass parameters by position: {name}"
    if kind is Request:
        return resolver(lambda request: request)
    for annotation in get_args(kind)[1:]:
        if isinstance(annotation, Resolver | BodyReader):
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
