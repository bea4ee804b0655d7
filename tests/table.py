"""Tables of cases: one test checks all of them and reports every mismatch."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def table(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but as one test, whose failure lists every case that failed.

    All cases share the fixtures of the test, so no case may depend on what another one leaves
    behind. A table without cases fails. With several tables, every combination is a case.
    """
    names = (names,) if isinstance(names, str) else names
    cases = list(cases)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def check_all(**fixtures: Any) -> None:
            assert cases, "the table has no cases"
            results = [(case, _error(test, {**fixtures, **_arguments(names, case)})) for case in cases]
            errors = [(case, error) for case, error in results if error is not None]
            if errors:
                raise AssertionError(_message(errors, len(cases))) from errors[0][1]

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in names]
        check_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return check_all

    return decorate


def _arguments(names: tuple[str, ...], case: Any) -> dict[str, Any]:
    return dict(zip(names, (case,) if len(names) == 1 else case, strict=True))


def _error(test: Test, arguments: dict[str, Any]) -> BaseException | None:
    try:
        test(**arguments)
    except (Exception, pytest.fail.Exception) as error:  # the second is how `pytest.raises` fails
        return error
    return None


def _message(errors: list[tuple[Any, BaseException]], total: int) -> str:
    mismatches = [f"{_shorten(repr(case))}: {type(error).__name__}: {error}" for case, error in errors]
    return "\n".join([f"{len(errors)} of {total} cases failed:", *mismatches])


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
