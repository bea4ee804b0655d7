"""The error tree. A room raises one of these; `web.problems` is the one place that renders them (RFC 9457).

Problem
├── MalformedJson 400 · BadRequest 400
├── Unauthenticated 401 · Forbidden 403 · ForeignOrigin 403
├── ValidationFailed 422 · IdempotencyKeyReused 422 · UnsupportedMediaType 415
├── NotFound 404
├── LeaseLost 409 · WrongState 409 · IdempotencyKeyInUse 409 · DuplicateJob 409 · QueueNotEmpty 409 · TooManyKeys 409
├── PayloadTooLarge 413 · BatchTooLarge 413
├── MethodNotAllowed 405 · RequestTimeout 408 · UrlTooLong 414 · HeadersTooLarge 431
├── QueueLimit 429 · QueueFull 429 · RateLimited 429
└── DatabaseUnavailable 503 · Overloaded 503
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple
from uuid import UUID

Outcome = Literal["not_done", "unknown"]
MAX_FAULTS = 10  # listed in one problem; its detail says how many there are


class Fault(NamedTuple):
    """One thing that is wrong with a request, and where (a JSON pointer)."""

    pointer: str
    code: str
    detail: str


class Problem(Exception):
    """What a caller is told: a status, a code that programs match on, a sentence for people, and typed extra members."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Something went wrong on our side"
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
        """`count` is the number of all faults if `faults` has only the first of them."""
        self.faults = faults
        self.fault_count = max(count, len(faults))


class MalformedJson(Problem):
    status, code, title = 400, "malformed_json", "The body is not JSON"


class ValidationFailed(Problem):
    status, code, title = 422, "validation_failed", "The request is not what we take"

    @classmethod
    def at(cls, pointer: str, detail: str, code: str = "invalid") -> "ValidationFailed":
        return cls(detail, faults=[Fault(pointer, code, detail)])

    @classmethod
    def of(cls, faults: Sequence[Fault], count: int = 0) -> "ValidationFailed":
        """One problem for all errors of a body. `faults` may be only the first of `count`."""
        count = max(count, len(faults))
        detail = faults[0].detail if count == 1 else f"{counted(count)}; the first: {faults[0].detail}"
        return cls(detail, faults=faults, fault_count=count)


def counted(count: int) -> str:
    """How many errors there are, and how many of them the response lists if it does not list all."""
    return f"{count} errors, {MAX_FAULTS} listed" if count > MAX_FAULTS else f"{count} errors"


def refuse(faults: Iterable[Fault | None], more: int = 0) -> None:
    """Raises ValidationFailed if there is any fault, so that one response reports the faults of several checks. `more` is the number of
    faults that are counted but not listed."""
    found = [fault for fault in faults if fault is not None]
    if found:
        raise ValidationFailed.of(found, len(found) + more)


class UnsupportedMediaType(Problem):
    status, code, title = 415, "unsupported_media_type", "The encoding of the body is not supported"


class Unauthenticated(Problem):
    status, code, title = 401, "unauthenticated", "No valid API key"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": 'Bearer realm="longshore"'}


class Forbidden(Problem):
    status, code, title = 403, "forbidden", "The API key does not allow that"

    @classmethod
    def at(cls, pointer: str, detail: str) -> "Forbidden":
        return cls(detail, faults=[Fault(pointer, cls.code, detail)])


class ForeignOrigin(Problem):
    """A browser page of another origin calls a broker without API keys. It is not Forbidden, because no key lacks a scope."""

    status, code, title = 403, "foreign_origin", "Pages of other origins may call only brokers with API keys"


class NotFound(Problem):
    status, code, title = 404, "not_found", "No such thing"


class MethodNotAllowed(Problem):
    status, code, title = 405, "method_not_allowed", "This path does not take that method"


class LeaseLost(Problem):
    status, code, title = 409, "lease_lost", "The token is not the current lease"

    def __init__(self, job_id: UUID, state: str, attempt: int) -> None:
        super().__init__(
            f"job {job_id} is {state}, attempt {attempt}", job_id=str(job_id), state=state, attempt=attempt
        )


class WrongState(Problem):
    status, code, title = 409, "wrong_state", "The job's state does not allow that"

    def __init__(self, job_id: UUID, state: str) -> None:
        super().__init__(f"job {job_id} is {state}", state=state)


class IdempotencyKeyReused(Problem):
    status, code, title = 422, "idempotency_key_reused", "The key was used with another body"


class IdempotencyKeyInUse(Problem):
    status, code, title = 409, "idempotency_key_in_use", "The first call with this key is still running"


class DuplicateJob(Problem):
    status, code, title = 409, "duplicate_job", "Another job has the unique key"

    def __init__(self, existing_job_id: UUID, faults: Sequence[Fault] = ()) -> None:
        super().__init__(f"job {existing_job_id} has the key", existing_job_id=str(existing_job_id), faults=faults)


class QueueNotEmpty(Problem):
    status, code, title = 409, "queue_not_empty", "There are jobs in the queue"


class TooManyKeys(Problem):
    status, code, title = 409, "too_many_keys", "The name has as many live keys as allowed"


class PayloadTooLarge(Problem):
    status, code, title = 413, "payload_too_large", "Too many bytes"

    def __init__(self, detail: str, limit: int, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail, limit=limit, faults=faults)


class BatchTooLarge(Problem):
    status, code, title = 413, "batch_too_large", "Too much for one call"

    def __init__(self, detail: str, limit: int) -> None:
        super().__init__(detail, limit=limit)


class QueueLimit(Problem):
    status, code, title = 429, "queue_limit", "There are as many queues as allowed"


class QueueFull(Problem):
    status, code, title = 429, "queue_full", "As many jobs wait in the queue as may"

    def __init__(self, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail, retry_after=1, faults=faults)


class RateLimited(Problem):
    status, code, title = 429, "rate_limited", "The API key has used up its quota"


class DatabaseUnavailable(Problem):
    """`not_done`: nothing was sent. `unknown`: it may have committed; repeat with the same key or token to find out."""

    status, code, title = 503, "database_unavailable", "The database is not available"

    def __init__(self, detail: str, outcome: Outcome) -> None:
        super().__init__(detail, retry_after=1, outcome=outcome)
        self.outcome = outcome


# What web.guard refuses before there is a request to speak of.


class BadRequest(Problem):
    status, code, title = 400, "bad_request", "That is not HTTP as we take it"


class RequestTimeout(Problem):
    status, code, title = 408, "request_timeout", "The request did not come in time"


class UrlTooLong(Problem):
    status, code, title = 414, "url_too_long", "The URL is too long"


class HeadersTooLarge(Problem):
    status, code, title = 431, "headers_too_large", "Too many headers, or too long ones"


class Overloaded(Problem):
    """Nothing of the request was looked at, so it is always safe to repeat."""

    status, code, title = 503, "overloaded", "As much is going on here as may"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, retry_after=1, outcome="not_done")
