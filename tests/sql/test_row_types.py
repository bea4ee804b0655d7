"""Postgres can prepare every statement, and its columns match the row type that it fills."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import asyncpg
import pytest

from tests.database import TestDatabase
from tests.sql.statements import ALL_STATEMENTS, Statement

# sum(bigint) is numeric, which the driver returns as Decimal, not as int.
TYPES: Mapping[object, set[str]] = {
    int: {"int2", "int4", "int8"},
    str: {"text"},
    bool: {"bool"},
    float: {"float8"},
    bytes: {"bytea"},
    UUID: {"uuid"},
    datetime: {"timestamptz"},
    list[str]: {"text[]"},
    Sequence[str]: {"text[]"},
    list[UUID]: {"uuid[]"},
}


def result_columns(database: TestDatabase, text: str) -> dict[str, str]:
    """Prepares a statement and returns its columns with their types."""

    async def prepare() -> dict[str, str]:
        connection = await asyncpg.connect(database.dsn)
        try:
            statement = await connection.prepare(text)
            return {column.name: column.type.name for column in statement.get_attributes()}
        finally:
            await connection.close()

    return database.loop.run(prepare())


def fields(row_type: Any) -> dict[str, object]:
    """Returns the fields in order with their types, without `| None`."""
    names = (
        [field.name for field in dataclasses.fields(row_type)]
        if dataclasses.is_dataclass(row_type)
        else list(row_type._fields)
    )
    hints = get_type_hints(row_type)
    return {name: without_none(hints[name]) for name in names}


def without_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (kind,) = [part for part in get_args(hint) if part is not NoneType]
    return kind


def mismatches(columns: Mapping[str, str], row_type: Any) -> list[str]:
    expected = fields(row_type)
    if list(columns) != list(expected):
        return [f"columns {list(columns)} do not fill {list(expected)}"]
    return [
        f"{name}: {columns[name]} is no {hint}" for name, hint in expected.items() if columns[name] not in TYPES[hint]
    ]


@pytest.mark.parametrize("statement", ALL_STATEMENTS, ids=str)
def test_statement_can_be_prepared_and_matches_its_row_type(database: TestDatabase, statement: Statement) -> None:
    columns = result_columns(database, statement.text)
    if statement.fills is not None:
        assert mismatches(columns, getattr(statement.store, statement.fills)) == []


def test_every_splatted_row_type_is_compared_with_a_statement() -> None:
    """`RowType(*row)` is safe only for row types that this module checks."""
    compared = {(statement.package, statement.fills) for statement in ALL_STATEMENTS}
    splatted = {(statement.package, name) for statement in ALL_STATEMENTS for name in splatted_row_types(statement)}
    assert splatted
    assert splatted <= compared


def splatted_row_types(statement: Statement) -> set[str]:
    source = statement.store.__file__
    assert source is not None
    with open(source, encoding="utf-8") as file:
        text = file.read()
    return {name for name in vars(statement.store) if f"{name}(*row)" in text}


class Sample(NamedTuple):
    id: UUID
    due: datetime | None
    notified: bool


def test_extra_swapped_or_mistyped_column_is_a_mismatch() -> None:
    columns = {"id": "uuid", "due": "timestamptz", "notified": "bool"}
    assert mismatches(columns, Sample) == []
    assert mismatches(columns | {"more": "text"}, Sample)
    assert mismatches(dict(reversed(columns.items())), Sample)
    assert mismatches(columns | {"notified": "numeric"}, Sample)
