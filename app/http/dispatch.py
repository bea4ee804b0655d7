"""Passes each request to the function of its route, sends the response and records the result.

    connection -> Dispatcher -> FastRoute -> function           operations called for every job
    connection -> Dispatcher -> ASGI -> framework -> function   all other operations

A fast route bypasses ASGI, the framework's routing, its middleware and its dependency solver. Its
function, parameters, errors and OpenAPI entry are like those of any other route. For a request with
a query string, the framework calls the same function.

In both cases, a resolver gets one parameter of the function from the request. Services are such
parameters, too: `Annotated[EnqueueService, service("enqueuer")]`. A resolver is synchronous, so it
cannot wait for the body: a `BodyReader` gets the body instead.
"""

import asyncio
import inspect
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_args

from fastapi import APIRouter, FastAPI, Request, Response, params
from fastapi.params import Depends
from fastapi.routing import APIRoute
from prometheus_client import Histogram
from pydantic import TypeAdapter, ValidationError
from starlette.types import Message, Receive, Scope, Send

from app.errors import DatabaseUnavailable, Outcome, Problem
from app.http.authorization import Access
from app.http.bodies import BodyReader
from app.http.headers import get_header
from app.http.large_response import LargeJsonResponse
from app.http.parameter_errors import validation_failed
from app.http.problems import render
from app.log import log
from app.metrics import Metrics
from app.server.asgi import call_asgi
from app.server.exchange import Exchange

F = TypeVar("F", bound=Callable[..., Any])
ResolveFunction = Callable[[Request], Any]

_JOBS_PREFIX, _JOB_PREFIX = "/jobs/", "/jobs/{job_id}/"
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # a browser must not guess that user data is HTML
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")


# Parameters of a function


@dataclass(frozen=True)
class Resolver(Depends):
    """Gets one parameter of a route's function from the request.

    Fast routes call `resolve`. The framework awaits `dependency`, which calls `resolve`.
    `dependency` is a coroutine function because the framework runs plain functions in a thread.
    """

    resolve: ResolveFunction = field(kw_only=True)


def make_resolver(resolve: ResolveFunction) -> Resolver:
    async def dependency(request: Request) -> Any:
        return resolve(request)

    return Resolver(dependency, resolve=resolve)


def service(name: str) -> Any:
    """Declares a parameter of a route's function: the service with this name in
    `app.broker.Broker`."""
    return make_resolver(lambda request: getattr(request.app.state.broker, name))


def _get_access(request: Request) -> Access:
    access: Access = request.scope["state"]["access"]
    return access


AccessDep = Annotated[Access, make_resolver(_get_access)]  # stored by `require_scopes`


# Routes


class FastRoute(APIRoute):
    """A route that the dispatcher calls itself. Its function has simple parameters only.

    Exactly one parameter is the body. Each other parameter is the request, a `Resolver`, a header,
    or an id in the path. If a function has any other parameter, the import of its module fails.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._call: Callable[..., Awaitable[Response]] = endpoint
        resolvers = [_resolver_for(parameter, path) for parameter in inspect.signature(endpoint).parameters.values()]
        (position,) = [index for index, parameter in enumerate(resolvers) if isinstance(parameter, BodyReader)]
        self._read_body: Callable[[Request], Awaitable[Any]] = resolvers[position].dependency  # type: ignore[assignment]
        self._before_body = [parameter.resolve for parameter in resolvers[:position] if isinstance(parameter, Resolver)]
        self._after_body = [parameter.resolve for parameter in resolvers[position:] if isinstance(parameter, Resolver)]
        super().__init__(path, endpoint, **options)
        # `operation` has added two checks, in this order: require_scopes, reject_unknown_parameters.
        checks = [depends.dependency for depends in self.dependencies if depends.dependency is not None]
        self._check_access, self._check_query = checks

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.handle_request

    async def handle_request(self, request: Request) -> Response:
        """Calls the function with its parameters. Checks the head of the request before it waits
        for the body, which may not have arrived."""
        await self._check_access(request)
        if request.scope["query_string"]:
            await self._check_query(request)
        arguments = [resolve(request) for resolve in self._before_body]
        body = await self._read_body(request)
        return await self._call(*arguments, body, *[resolve(request) for resolve in self._after_body])


def fast_route(router: APIRouter, path: str, **options: Any) -> Callable[[F], F]:
    """Registers a fast route, as `router.post` registers any other route. Fast routes are for
    operations that are called for every job."""

    def register(function: F) -> F:
        router.add_api_route(path, function, methods=["POST"], route_class_override=FastRoute, **options)
        return function

    return register


class Dispatcher:
    """Gives each request an id, calls its route, sends the response and records the result."""

    def __init__(self, app: FastAPI, metrics: Metrics, routes: Iterable[FastRoute]) -> None:
        self._app = app
        self._metrics = metrics
        by_path = {route.path: route for route in routes}
        self._by_path = {path: route for path, route in by_path.items() if "{" not in path}
        self._by_verb = {
            path.removeprefix(_JOB_PREFIX): route for path, route in by_path.items() if path.startswith(_JOB_PREFIX)
        }
        self._verbose = log.is_enabled_for(logging.DEBUG)
        # Histograms by route and status class. They are kept here, because finding a histogram by
        # its labels takes longer than observing a value.
        self._duration_histograms: dict[tuple[str, int], Histogram] = {}

    def handle(self, scope: Scope, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Calls the fast route of a request. If the request has no fast route or has a query
        string, calls the framework."""
        route = self._find_route(scope)
        if route is None:
            return call_asgi(self._call_framework, scope, exchange)
        return self._call_route(route, scope, exchange)

    def _find_route(self, scope: Scope) -> FastRoute | None:
        """Finds the fast route of a request, and stores the parameters of its path in the scope."""
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

    async def _call_route(self, route: FastRoute, scope: Scope, exchange: Exchange) -> None:
        started = time.perf_counter()
        scope["app"] = self._app
        id = _assign_id(scope)
        try:
            response = await route.handle_request(Request(scope))
        except (Exception, asyncio.CancelledError) as error:
            response = _error_response(error, scope, id)
        headers = [*response.raw_headers, (b"x-request-id", id.encode()), _NO_SNIFFING]
        bytes_to_follow = response.size if isinstance(response, LargeJsonResponse) else 0
        await exchange.respond(response.status_code, headers, bytes(response.body), bytes_to_follow)
        if isinstance(response, LargeJsonResponse) and exchange.is_answered:
            async for piece in response.pieces():
                await exchange.send_more(piece)
        self._record(scope, id, route.name, response.status_code, started)

    async def _call_framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the framework. Like `_call_route`, adds a request id and a header, renders errors
        and records the result.

        This method wraps the framework and all its middleware as plain ASGI. A BaseHTTPMiddleware
        of Starlette would hide a client's disconnect from the handler.
        """
        started = time.perf_counter()
        id = _assign_id(scope)
        routed_scope = _route_head_as_get(scope)
        status = 0  # until the response has started

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += (b"x-request-id", id.encode()), _NO_SNIFFING
            await send(message)

        try:
            await self._app(routed_scope, receive, send_with_id)
        except (Exception, asyncio.CancelledError) as error:
            response = _error_response(error, routed_scope, id)
            if status == 0:
                await response(scope, receive, send_with_id)
        finally:
            self._record(scope, id, getattr(routed_scope.get("route"), "name", "unknown"), status, started)

    def _record(self, scope: Scope, id: str, route: str, status: int, started: float) -> None:
        """Adds the duration of a request to the metrics. Logs the request if it ended with a server
        error, or if the log level is DEBUG."""
        seconds = time.perf_counter() - started
        status_class = status // 100
        histogram = self._duration_histograms.get((route, status_class))
        if histogram is None:
            histogram = self._metrics.requests.labels(route, f"{status_class}xx")
            self._duration_histograms[route, status_class] = histogram
        histogram.observe(seconds)
        if status >= 500 or self._verbose:
            level = logging.WARNING if status >= 500 else logging.DEBUG
            fields = {"method": scope["method"], "path": scope["path"], "status": status}
            log.log(level, "request answered", request_id=id, **fields, ms=round(seconds * 1000, 1))


def _assign_id(scope: Scope) -> str:
    """Chooses the id of a request: the client's X-Request-Id if it is safe to log, otherwise a
    random id. Stores the id in the scope and returns it."""
    sent = get_header(scope, b"x-request-id")
    id = sent if sent is not None and _SAFE_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
    scope["state"]["request_id"] = id
    return id


def _error_response(error: BaseException, scope: Scope, id: str) -> Response:
    if isinstance(error, Problem):
        return render(error, id)
    if isinstance(error, asyncio.CancelledError):  # the server stops and no longer waits for requests
        outcome: Outcome = "not_done" if scope["method"] == "GET" else "unknown"
        return render(DatabaseUnavailable("the broker stopped before the request was done", outcome), id)
    log.error("request failed", request_id=id, exc_info=error)
    return render(Problem("the error was logged with this request id"), id)


def _route_head_as_get(scope: Scope) -> Scope:
    """Returns a scope with which the framework routes a HEAD request to the handler of GET.

    The server omits the body of the response, because the original scope still says HEAD.
    """
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _resolver_for(parameter: inspect.Parameter, path: str) -> Resolver | BodyReader:
    name, kind = parameter.name, parameter.annotation
    assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, f"fast routes pass parameters by position: {name}"
    if kind is Request:
        return make_resolver(lambda request: request)
    for annotation in get_args(kind)[1:]:
        if isinstance(annotation, Resolver | BodyReader):
            return annotation
        if isinstance(annotation, params.Header):
            return make_resolver(_from_header(name.replace("_", "-"), TypeAdapter(kind)))
    assert f"{{{name}}}" in path, f"parameter of a fast route not supported: {name}"
    return make_resolver(_from_path(name, TypeAdapter(kind)))


def _from_header(name: str, kind: TypeAdapter[Any]) -> ResolveFunction:
    key = name.encode()

    def resolve(request: Request) -> object:
        value = get_header(request.scope, key)
        return None if value is None else _validate(kind, value, "header", name)

    return resolve


def _from_path(name: str, kind: TypeAdapter[Any]) -> ResolveFunction:
    return lambda request: _validate(kind, request.scope["path_params"][name], "path", name)


def _validate(kind: TypeAdapter[Any], value: str, *location: str) -> object:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise validation_failed([{**found, "loc": location} for found in error.errors()]) from None
