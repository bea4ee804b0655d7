"""Loads named SQL statements. The .sql file of a package contains their text, and functions in the
package's `store.py` run them. A package with many statements has several .sql files.

    -- name: x        starts the statement `x`; the comment below says which transition it makes
    -- row: Row       the Python type of the rows that the statement returns; a test compares the
                      columns of the statement with the fields of the type
    -- fragment: y    starts a piece of SQL that statements include as {{y}}
    :lane             a parameter

A fragment for one package is at the top of the package's file. A fragment for several packages is
in app/fragments.sql. `python -m app sql x` prints the statement `x` with its fragments, for psql.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SHARED_FRAGMENTS = Path(__file__).parents[1] / "fragments.sql"

_SECTION = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_ROW = re.compile(r"^-- row: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_FRAGMENT = re.compile(r"\{\{(\w+)\}\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")  # :name, but not the second half of a ::cast


@dataclass(frozen=True, slots=True)
class Query:
    """One SQL statement. `text` contains its parameters by name; `sql` has $1, $2, … instead, as
    Postgres requires."""

    name: str
    text: str
    sql: str
    parameters: tuple[str, ...]
    comment: str
    row: str | None

    def __call__(self, **values: object) -> tuple[Any, ...]:
        """Returns the statement and its arguments in order, for `db.rows(*SQL.x(lane=1))`."""
        return self._bind(values)

    def bind(self, rows: Sequence[Any], **values: object) -> tuple[Any, ...]:
        """Returns the statement and its arguments, for a statement with array parameters.

        Each field of `rows` becomes one array, for the parameter of the same name (`to_columns`).
        `values` are the other parameters.
        """
        return self._bind(to_columns(rows) | values)

    def bind_columns(self, columns: Mapping[str, object], **values: object) -> tuple[Any, ...]:
        """Like `bind`, for columns instead of rows (see `to_columns`). The columns are passed as a
        dict, because `**` would copy the dict argument by argument, which takes 2 µs for 30
        parameters."""
        return self._bind({**columns, **values})

    def _bind(self, values: Mapping[str, object]) -> tuple[Any, ...]:
        if len(values) != len(self.parameters):
            raise TypeError(f"{self.name} takes {', '.join(self.parameters)}; got {', '.join(values)}")
        return self.sql, *map(values.__getitem__, self.parameters)


def compile_statement(name: str, body: str, fragments: Mapping[str, str]) -> Query:
    """Expands the fragments of a statement, and numbers its parameters."""
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

    row = _ROW.search(body)
    text = _expand(_without_comments(body), fragments).removesuffix(";")
    sql = f"/* {name} */ {_PARAMETER.sub(number, text)}"
    return Query(name, text, sql, tuple(numbers), "\n".join(_COMMENT.findall(body)), row[1] if row else None)


class Queries:
    """The statements of one or more .sql files, as attributes: `SQL.enqueue` is the statement
    `enqueue`, and `vars(SQL)` is a dict of all statements by name."""

    def __init__(self, *paths: Path) -> None:
        for path in paths:
            vars(self).update(_load(path))

    def __getattr__(self, name: str) -> Query:
        """Raises AttributeError, because Python calls this method only for unknown names. The
        signature tells mypy that statements are attributes."""
        raise AttributeError(f"no statement is named {name}")


def _load(path: Path) -> dict[str, Query]:
    sections = _sections(path)
    bodies = {name: body for (kind, name), body in sections.items() if kind == "name"}
    fragments = shared_fragments() | {name: body for (kind, name), body in sections.items() if kind == "fragment"}
    return {name: compile_statement(name, body, fragments) for name, body in bodies.items()}


@cache
def shared_fragments() -> dict[str, str]:
    return {name: body for (_kind, name), body in _sections(SHARED_FRAGMENTS).items()}


def _sections(path: Path) -> dict[tuple[str, str], str]:
    pieces = _SECTION.split(path.read_text())[1:]
    return {(kind, name): body for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)}


def _without_comments(body: str) -> str:
    return re.sub(r"\n\s*\n", "\n", _COMMENT.sub("", body)).strip()


def _expand(text: str, fragments: Mapping[str, str]) -> str:
    """Replaces each {{name}} by the fragment of that name. A fragment may include others."""
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda found: _without_comments(fragments[found[1]]), text)
    return text


def load_queries(module_file: str) -> Queries:
    """Loads the .sql files beside `module_file`, which is the `__file__` of the calling module."""
    return Queries(*sorted(Path(module_file).parent.glob("*.sql")))


def find_query(name: str) -> Query | None:
    """Finds a statement in the .sql files of all packages."""
    files = sorted(SHARED_FRAGMENTS.parent.glob("*/*.sql"))
    return next((statements[name] for statements in map(_load, files) if name in statements), None)


def to_columns(rows: Sequence[Any]) -> dict[str, Sequence[object] | None]:
    """Converts rows to columns for `unnest`: one array for each field, by the name of the field.
    The rows are NamedTuples, and there is at least one.

    A column that contains only NULLs becomes NULL instead of an array. That is faster, because the
    driver needs 0.3 µs for each element, and most of the 29 columns of a new job contain only
    NULLs. `unnest` fills shorter arrays with NULLs, so the rows are the same.
    """
    columns = zip(*rows, strict=True)
    return {
        name: None if column[0] is None and column.count(None) == len(column) else column
        for name, column in zip(rows[0]._fields, columns, strict=True)
    }
