"""The one place that turns an error into an answer: application/problem+json (RFC 9457)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from app import errors
from app.errors import Fault, MethodNotAllowed, NotFound, ValidationFailed
from app.web.headers import request_id
from app.web.shapes import UNSET, Int32, Told, UnsetType


class FieldProblem(Told):
    """One thing that is wrong with the request. `pointer` is a JSON pointer into the body (or `/query/x`, `/path/x`)."""

    pointer: str
    code: str
    detail: str


class Problem(Told):
    """RFC 9457. `code` is for programs, `detail` for people, `instance` is the request id. Some members come with some codes only."""

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


def details(problem: errors.Problem, instance: str) -> Problem:
    return Problem(
        type=f"/problems/{problem.code}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        instance=instance,
        code=problem.code,
        errors=[FieldProblem(**fault._asdict()) for fault in problem.faults] or UNSET,
        **problem.members,  # type: ignore[arg-type]
    )


def render(problem: errors.Problem, instance: str, headers: Mapping[str, str] | None = None) -> Response:
    sent = {**problem.headers, **(headers or {})}
    if problem.retry_after is not None:
        sent["Retry-After"] = str(problem.retry_after)
    return Response(msgspec.json.encode(details(problem, instance)), problem.status, sent, "application/problem+json")


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_anything)
    app.add_middleware(_NoNul)


class _NoNul:
    """Postgres has no NUL in texts: a filter with one can match nothing, and must not get that far. Bodies are checked as JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and b"%00" in scope["query_string"]:
            refusal = render(ValidationFailed.at("/query", "a NUL character in a parameter"), request_id(scope))
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.Problem)
    return render(error, request_id(request.scope))


async def _on_anything(request: Request, _error: Exception) -> Response:
    """Raised again by the framework, and logged by the envelope."""
    return render(errors.Problem("the error was logged under this request id"), request_id(request.scope))


async def _on_invalid(request: Request, error: Exception) -> Response:
    """FastAPI checks path and query; bodies are ours."""
    assert isinstance(error, RequestValidationError)
    return render(validation_failed(error.errors()), request_id(request.scope))


def validation_failed(found: Sequence[Mapping[str, Any]]) -> ValidationFailed:
    """From what pydantic says."""
    faults = [Fault("/" + "/".join(str(step) for step in one["loc"]), one["type"], one["msg"]) for one in found]
    return ValidationFailed(faults[0].detail, faults=faults)


async def _on_http(request: Request, error: Exception) -> Response:
    """The router's own: no such path, or not with that method."""
    assert isinstance(error, HTTPException)
    wrong_method = error.status_code == 405
    headers = {**(error.headers or {}), **({"Allow": _allowed(request)} if wrong_method else {})}
    kind = MethodNotAllowed if wrong_method else NotFound
    return render(kind(f"{request.method} {request.url.path}"), request_id(request.scope), headers)


def _allowed(request: Request) -> str:
    """All methods of the path: the router tells those of the first route that has it."""
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    own = [item for path, item in paths.items() if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path)]
    return ", ".join(sorted({method.upper() for item in own for method in item} or {"GET"}))
