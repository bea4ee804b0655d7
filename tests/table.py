"""Tables of cases: one test checks all of them and reports every mismatch."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

Test = Callable[..., None]
Case = Callable[[object], AbstractContextManager[None]]


def table(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but as one test, whose failure lists every case that failed.

    All cases share the fixtures of the test, so no case may depend on what another one leaves
    behind. With several tables, every combination is a case.
    """
    names = (names,) if isinstance(names, str) else names
    cases = list(cases)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def check_all(**fixtures: Any) -> None:
            with every_case() as case:
                for values in cases:
                    with case(values):
                        test(**fixtures, **_arguments(names, values))

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in names]
        check_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return check_all

    return decorate


@contextmanager
def every_case() -> Iterator[Case]:
    """Yields `case(name)`, a context for the check of one case. Fails at the end, with all failures.

    A table without cases fails, too.
    """
    names: list[object] = []
    errors: list[tuple[object, BaseException]] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        names.append(name)
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # the second is how `pytest.raises` fails
            errors.append((name, error))

    yield case
    assert names, "the table has no cases"
    if errors:
        raise AssertionError(_message(errors, len(names))) from errors[0][1]


def _arguments(names: tuple[str, ...], values: Any) -> dict[str, Any]:
    return dict(zip(names, (values,) if len(names) == 1 else values, strict=True))


def _message(errors: list[tuple[object, BaseException]], total: int) -> str:
    mismatches = [f"{_shorten(name)}: {type(error).__name__}: {error}" for name, error in errors]
    return "\n".join([f"{len(errors)} of {total} cases failed:", *mismatches])


def _shorten(name: object) -> str:
    text = name if isinstance(name, str) else repr(name)
    return text if len(text) <= 200 else f"{text[:200]}…"
