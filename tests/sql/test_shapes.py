"""Every statement is one that Postgres can prepare, and gives just the columns of the shape that it fills."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import asyncpg
import pytest

from tests.database import TestDatabase
from tests.sql.statements import ALL, Named

# sum(bigint) is numeric, which arrives as a Decimal: no int.
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


def prepared(database: TestDatabase, text: str) -> dict[str, str]:
    """The columns that it gives, with their types."""

    async def prepare() -> dict[str, str]:
        connection = await asyncpg.connect(database.dsn)
        try:
            statement = await connection.prepare(text)
            return {column.name: column.type.name for column in statement.get_attributes()}
        finally:
            await connection.close()

    return database.loop.run(prepare())


def fields(shape: Any) -> dict[str, object]:
    """In their order, without the None that a column may be."""
    names = (
        [field.name for field in dataclasses.fields(shape)] if dataclasses.is_dataclass(shape) else list(shape._fields)
    )
    hints = get_type_hints(shape)
    return {name: without_none(hints[name]) for name in names}


def without_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (left,) = [part for part in get_args(hint) if part is not NoneType]
    return left


def misfits(columns: Mapping[str, str], shape: Any) -> list[str]:
    wanted = fields(shape)
    if list(columns) != list(wanted):
        return [f"columns {list(columns)} do not fill {list(wanted)}"]
    return [
        f"{name}: {columns[name]} is no {hint}" for name, hint in wanted.items() if columns[name] not in TYPES[hint]
    ]


@pytest.mark.parametrize("statement", ALL, ids=str)
def test_a_statement_can_be_prepared_and_fills_its_shape(database: TestDatabase, statement: Named) -> None:
    columns = prepared(database, statement.text)
    if statement.fills is not None:
        assert misfits(columns, getattr(statement.store, statement.fills)) == []


def test_a_shape_that_is_splatted_from_a_row_is_compared_with_a_statement() -> None:
    """`Shape(*row)` is safe only where this file looks at it."""
    compared = {(statement.room, statement.fills) for statement in ALL}
    splatted = {(statement.room, name) for statement in ALL for name in shapes_of_rows(statement)}
    assert splatted
    assert splatted <= compared


def shapes_of_rows(statement: Named) -> set[str]:
    source = statement.store.__file__
    assert source is not None
    with open(source, encoding="utf-8") as file:
        text = file.read()
    return {name for name in vars(statement.store) if f"{name}(*row)" in text}


class Sample(NamedTuple):
    id: UUID
    due: datetime | None
    told: bool


def test_a_column_too_many_swapped_or_of_another_type_is_found() -> None:
    right = {"id": "uuid", "due": "timestamptz", "told": "bool"}
    assert misfits(right, Sample) == []
    assert misfits(right | {"more": "text"}, Sample)
    assert misfits(dict(reversed(right.items())), Sample)
    assert misfits(right | {"told": "numeric"}, Sample)
