"""The error tree: every class is in the docstring's tree, with the documented code and status."""

import re

from app import errors
from app.errors import Problem
from tests.table import table

# Public codes and statuses: clients depend on them.
CONTRACT = {
    "malformed_json": 400,
    "validation_failed": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "foreign_origin": 403,
    "not_found": 404,
    "lease_lost": 409,
    "wrong_state": 409,
    "duplicate_job": 409,
    "idempotency_key_reused": 422,
    "idempotency_key_in_use": 409,
    "payload_too_large": 413,
    "batch_too_large": 413,
    "queue_full": 429,
    "rate_limited": 429,
    "database_unavailable": 503,
    "method_not_allowed": 405,
    "queue_limit": 429,
    "queue_not_empty": 409,
    "bad_request": 400,
    "request_timeout": 408,
    "url_too_long": 414,
    "headers_too_large": 431,
    "overloaded": 503,
    "too_many_keys": 409,
    "unsupported_media_type": 415,
}


def problems() -> list[type[Problem]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Problem) and kind is not Problem
    ]


def test_error_codes_and_statuses_are_unchanged() -> None:
    assert {kind.code: kind.status for kind in problems()} == CONTRACT


def test_error_codes_are_unique() -> None:
    kinds: list[type[Problem]] = [Problem, *problems()]
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)


def test_docstring_tree_lists_every_class_with_its_status() -> None:
    listed = re.findall(r"(\w+) (\d{3})\b", errors.__doc__ or "")
    assert sorted(listed) == sorted((kind.__name__, str(kind.status)) for kind in problems())


@table("kind", problems())
def test_error_titles_are_unique(kind: type[Problem]) -> None:
    assert [other for other in problems() if other.title == kind.title] == [kind]


def test_database_unavailable_has_outcome_and_retry_after() -> None:
    problem = errors.DatabaseUnavailable("gone", "unknown")
    assert (problem.members, problem.retry_after) == ({"outcome": "unknown"}, 1)
