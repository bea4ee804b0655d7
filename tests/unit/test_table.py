"""`table` checks every case, and its failure lists all that failed."""

import inspect
from typing import Any

import pytest

from tests.table import table


def failure(test: Any, **fixtures: Any) -> str:
    with pytest.raises(AssertionError) as error:
        test(**fixtures)
    return str(error.value)


def test_table_runs_every_case_with_the_fixtures() -> None:
    calls = []

    @table(("left", "right"), [(1, "a"), (2, "b")])
    def check(fixture: str, left: int, right: str) -> None:
        calls.append((fixture, left, right))

    check(fixture="f")
    assert calls == [("f", 1, "a"), ("f", 2, "b")]
    assert list(inspect.signature(check).parameters) == ["fixture"]


def test_failure_lists_every_failed_case_and_no_other() -> None:
    @table("number", [1, 2, 3, 4])
    def check(number: int) -> None:
        if number == 2:
            raise AssertionError("it is two")
        if number == 3:
            raise KeyError("three")
        if number == 4:
            with pytest.raises(ValueError, match="never"):
                pass

    assert failure(check).splitlines() == [
        "3 of 4 cases failed:",
        "2: AssertionError: it is two",
        "3: KeyError: 'three'",
        "4: Failed: DID NOT RAISE ValueError",
    ]


def test_several_tables_check_every_combination() -> None:
    @table("first", ["a", "b"])
    @table("second", ["x", "y"])
    def check(first: str, second: str) -> None:
        assert first + second in ("ax", "by")

    message = failure(check)
    assert "a: AssertionError: 1 of 2 cases failed:\ny:" in message
    assert "b: AssertionError: 1 of 2 cases failed:\nx:" in message


def test_table_without_cases_fails() -> None:
    @table("case", [])
    def check(case: object) -> None:
        raise NotImplementedError

    assert "no cases" in failure(check)
