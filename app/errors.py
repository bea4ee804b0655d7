"""The errors of the API. All packages raise them; only `app.http.problems` renders them as
responses (RFC 9457).

Problem
├── MalformedJson 400 · BadRequest 400
├── Unauthenticated 401 · Forbidden 403 · ForeignOrigin 403
├── ValidationFailed 422 · IdempotencyKeyReused 422 · UnsupportedMediaType 415
├── NotFound 404
├── LeaseLost 409 · WrongState 409 · IdempotencyKeyInUse 409 · DuplicateJob 409 · QueueNotEmpty 409
│   TooManyKeys 409
├── PayloadTooLarge 413 · BatchTooLarge 413
├── MethodNotAllowed 405 · RequestTimeout 408 · UrlTooLong 414 · HeadersTooLarge 431
├── QueueLimit 429 · QueueFull 429 · RateLimited 429
└── DatabaseUnavailable 503 · Overloaded 503
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple
from uuid import UUID

Outcome = Literal["not_done", "unknown"]
MAX_FAULTS = 10  # maximum number of faults in one problem; its detail contains the total number


class Fault(NamedTuple):
    """One error in a request. `pointer` is its place in the body, as a JSON pointer (RFC 6901)."""

    pointer: str
    code: str
    detail: str


class Problem(Exception):
    """An error that becomes a response. It has a status, a `code` for programs, a sentence for
    people (`detail`) and, for some codes, further members."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal server error"
    headers: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        detail: str,
        *,
        faults: Sequence[Fault] = (),
        fault_count: int = 0,
        retry_after: int | None = None,
        **members: str | int,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.set_faults(faults, fault_count)
        self.retry_after = retry_after
        self.members = members

    def set_faults(self, faults: Sequence[Fault], count: int = 0) -> None:
        """Sets the faults that the response lists.

        `count` is the total number of faults, if `faults` contains only the first ones."""
        self.faults = faults
        self.fault_count = max(count, len(faults))


class MalformedJson(Problem):
    status, code, title = 400, "malformed_json", "The body is not valid JSON"


class ValidationFailed(Problem):
    status, code, title = 422, "validation_failed", "The request is invalid"

    @classmethod
    def at(cls, pointer: str, detail: str, code: str = "invalid") -> "ValidationFailed":
        return cls(detail, faults=[Fault(pointer, code, detail)])

    @classmethod
    def of(cls, faults: Sequence[Fault], count: int = 0) -> "ValidationFailed":
        """Builds one problem for all errors of a request.

        `count` is the total number of errors, if `faults` contains only the first ones."""
        count = max(count, len(faults))
        detail = faults[0].detail if count == 1 else f"{error_count(count)}; the first: {faults[0].detail}"
        return cls(detail, faults=faults, fault_count=count)


def error_count(count: int) -> str:
    """Formats the number of errors: "3 errors", or "30 errors, 10 listed" above MAX_FAULTS."""
    return f"{count} errors, {MAX_FAULTS} listed" if count > MAX_FAULTS else f"{count} errors"


def raise_for_faults(faults: Iterable[Fault | None], unlisted: int = 0) -> None:
    """Raises one ValidationFailed with the faults of several checks, if there are any.

    A check that found no fault has None in `faults`. `unlisted` is the number of further faults,
    which are counted but are not in `faults`."""
    listed = [fault for fault in faults if fault is not None]
    if listed:
        raise ValidationFailed.of(listed, len(listed) + unlisted)


class UnsupportedMediaType(Problem):
    status, code, title = 415, "unsupported_media_type", "The content encoding is not supported"


class Unauthenticated(Problem):
    status, code, title = 401, "unauthenticated", "A valid API key is required"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Bearer realm="longshore"'}


class Forbidden(Problem):
    status, code, title = 403, "forbidden", "The API key does not allow this request"

    @classmethod
    def at(cls, pointer: str, detail: str) -> "Forbidden":
        return cls(detail, faults=[Fault(pointer, cls.code, detail)])


class ForeignOrigin(Problem):
    """A browser page from another origin called a broker without API keys.

    The code is not `forbidden`, because `forbidden` means that a key lacks a scope."""

    status, code, title = 403, "foreign_origin", "Cross-origin requests require API keys"


class NotFound(Problem):
    status, code, title = 404, "not_found", "Not found"


class MethodNotAllowed(Problem):
    status, code, title = 405, "method_not_allowed", "The path does not support this method"


class LeaseLost(Problem):
    status, code, title = 409, "lease_lost", "The lease token is no longer valid"

    def __init__(self, job_id: UUID, state: str, attempt: int) -> None:
        super().__init__(
            f"job {job_id} is {state}, attempt {attempt}", job_id=str(job_id), state=state, attempt=attempt
        )


class WrongState(Problem):
    status, code, title = 409, "wrong_state", "The state of the job does not allow this request"

    def __init__(self, job_id: UUID, state: str) -> None:
        super().__init__(f"job {job_id} is {state}", state=state)


class IdempotencyKeyReused(Problem):
    status, code, title = 422, "idempotency_key_reused", "The Idempotency-Key was used with a different body"


class IdempotencyKeyInUse(Problem):
    status, code, title = 409, "idempotency_key_in_use", "The first request with this Idempotency-Key is still running"


class DuplicateJob(Problem):
    status, code, title = 409, "duplicate_job", "Another job has this unique key"

    def __init__(self, existing_job_id: UUID, faults: Sequence[Fault] = ()) -> None:
        super().__init__(f"job {existing_job_id} has the key", existing_job_id=str(existing_job_id), faults=faults)


class QueueNotEmpty(Problem):
    status, code, title = 409, "queue_not_empty", "The queue is not empty"


class TooManyKeys(Problem):
    status, code, title = 409, "too_many_keys", "Too many active API keys have this name"


class PayloadTooLarge(Problem):
    status, code, title = 413, "payload_too_large", "The request body or payload is too large"

    def __init__(self, detail: str, limit: int, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail, limit=limit, faults=faults)


class BatchTooLarge(Problem):
    status, code, title = 413, "batch_too_large", "The batch is too large"

    def __init__(self, detail: str, limit: int) -> None:
        super().__init__(detail, limit=limit)


class QueueLimit(Problem):
    status, code, title = 429, "queue_limit", "The maximum number of queues is reached"


class QueueFull(Problem):
    status, code, title = 429, "queue_full", "The queue is full"

    def __init__(self, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail, retry_after=1, faults=faults)


class RateLimited(Problem):
    status, code, title = 429, "rate_limited", "The API key has exceeded its quota"


class DatabaseUnavailable(Problem):
    """The database cannot be used. `outcome` states whether the call may have written:

    - `not_done`: nothing was written; repeat the call.
    - `unknown`: the write may have been committed; repeat the call with the same
      Idempotency-Key or lease token to learn the result."""

    status, code, title = 503, "database_unavailable", "The database is not available"

    def __init__(self, detail: str, outcome: Outcome) -> None:
        super().__init__(detail, retry_after=1, outcome=outcome)
        self.outcome = outcome


# Errors that `app.server` sends before it has read a complete request.


class BadRequest(Problem):
    status, code, title = 400, "bad_request", "The HTTP request is malformed"


class RequestTimeout(Problem):
    status, code, title = 408, "request_timeout", "The request was not received in time"


class UrlTooLong(Problem):
    status, code, title = 414, "url_too_long", "The URL is too long"


class HeadersTooLarge(Problem):
    status, code, title = 431, "headers_too_large", "The request headers are too large or too many"


class Overloaded(Problem):
    """The broker rejects the request without handling it, so a retry is always safe."""

    status, code, title = 503, "overloaded", "The server is overloaded"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, retry_after=1, outcome="not_done")
