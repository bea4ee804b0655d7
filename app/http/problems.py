"""Renders errors as application/problem+json (RFC 9457), for all other modules."""

import re
from collections.abc import Collection, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from app import errors
from app.errors import MAX_FAULTS, MethodNotAllowed, NotFound, ValidationFailed
from app.http.headers import request_id
from app.http.parameter_errors import validation_failed
from app.http.schema_types import UNSET, Int32, ResponseModel, UnsetType

Methods = Mapping[str, Collection[str]]  # the methods of each path template


class FieldProblem(ResponseModel):
    """One error in the request.

    `pointer` is a JSON pointer into the body, or `/query/x`, `/path/x`, `/header/x`.
    """

    pointer: str
    code: str
    detail: str


class Problem(ResponseModel):
    """An error (RFC 9457).

    `code` is for programs, `detail` for people, `instance` is the request id. Some members are
    present with some codes only.
    """

    type: str
    title: str
    status: Int32
    detail: str
    instance: str
    code: str
    errors: list[FieldProblem] | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    attempt: Int32 | UnsetType = UNSET
    limit: Int32 | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    existing_job_id: str | UnsetType = UNSET


def to_response_model(problem: errors.Problem, instance: str) -> Problem:
    """Converts an error to its response model, which can also be part of another response."""
    return Problem(
        type=f"/problems/{problem.code}",
        title=problem.title,
        status=problem.status,
        detail=_detail(problem),
        instance=instance,
        code=problem.code,
        errors=[FieldProblem(**fault._asdict()) for fault in problem.faults[:MAX_FAULTS]] or UNSET,
        **problem.members,  # type: ignore[arg-type]
    )


def _detail(problem: errors.Problem) -> str:
    if problem.fault_count <= MAX_FAULTS:
        return problem.detail
    count = errors.error_count(problem.fault_count)
    return problem.detail if problem.detail.startswith(count) else f"{problem.detail} ({count})"


def render(problem: errors.Problem, instance: str, headers: Mapping[str, str] | None = None) -> Response:
    all_headers = {**problem.headers, **(headers or {})}
    if problem.retry_after is not None:
        all_headers["Retry-After"] = str(problem.retry_after)
    body = msgspec.json.encode(to_response_model(problem, instance)) + b"\n"
    return Response(body, problem.status, all_headers, "application/problem+json")


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(HTTPException, _on_routing_error)
    app.add_exception_handler(Exception, _on_internal_error)
    app.add_middleware(_RejectNul)


class _RejectNul:
    """Middleware that rejects NUL characters in query parameters.

    Postgres cannot store NUL, so a filter with NUL could never match. In bodies, `strict_json`
    rejects NUL.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and b"%00" in scope["query_string"]:
            response = render(
                ValidationFailed.at("/query", "a parameter must not contain a NUL character"), request_id(scope)
            )
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.Problem)
    return render(error, request_id(request.scope))


async def _on_internal_error(request: Request, _error: Exception) -> Response:
    """Renders an unexpected error as a 500. Afterwards the framework raises the error again, and
    `Dispatcher` logs it."""
    return render(errors.Problem("the error was logged with this request id"), request_id(request.scope))


async def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    """Renders the errors that FastAPI finds in path, query and header parameters as a 422.

    `GET /jobs/batch` gets a 405 instead. The path matches `/jobs/{job_id}` with an invalid id, but
    /jobs/batch exists for POST.
    """
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    if request.scope["path"] in request.app.state.methods and any(detail["loc"][0] == "path" for detail in details):
        return _wrong_method(request)
    return render(validation_failed(details, _known_parameters(request)), request_id(request.scope))


def _known_parameters(request: Request) -> list[str]:
    """Returns the names of the route's query parameters."""
    route = request.scope.get("route")
    fields = route.dependant.query_params if isinstance(route, APIRoute) else []
    models = [field.field_info.annotation for field in fields]
    return [name for model in models for name in getattr(model, "model_fields", ())]


async def _on_routing_error(request: Request, error: Exception) -> Response:
    """Renders the errors of the framework's router: 404 for an unknown path, 405 for a wrong
    method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return _wrong_method(request)
    detail = f"there is no {request.method} {request.url.path}; /docs lists all operations"
    return render(NotFound(detail), request_id(request.scope), error.headers)


def _wrong_method(request: Request) -> Response:
    allowed = _allowed_methods(request)
    problem = MethodNotAllowed(f"there is no {request.method} {request.url.path}; the path supports {allowed}")
    return render(problem, request_id(request.scope), {"Allow": allowed})


def _allowed_methods(request: Request) -> str:
    """Lists all methods of the path, for the header Allow. The framework knows only the methods of
    the first matching route.

    A path without parameters, such as /jobs/batch, may also match a route with parameters. Leaves
    out such a route if it ends in an id (/jobs/{job_id}), because `batch` is no id. Keeps such a
    route if it ends in a name, because /schedules/preview can be a schedule named `preview`.
    """
    methods: Methods = request.app.state.methods
    path = request.scope["path"]
    matching = [template for template in methods if _matches(template, path)]
    if path in methods:
        matching = [template for template in matching if not template.endswith("_id}")]
    return ", ".join(sorted({method for template in matching for method in methods[template]}))


def _matches(template: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) is not None
