"""Postgres can prepare every statement, and its columns match the row type that it fills."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pprint import pformat
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import asyncpg

from app.db.primary import Connection
from app.db.queries import compile_statement
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


async def all_mismatches(dsn: str, statements: Iterable[Statement]) -> dict[str, list[str]]:
    """Prepares the statements and returns those that fail or do not match their row type."""
    connection = await asyncpg.connect(dsn)
    try:
        found = {str(statement): await prepare(connection, statement) for statement in statements}
    finally:
        await connection.close()
    return {name: faults for name, faults in found.items() if faults}


async def prepare(connection: Connection, statement: Statement) -> list[str]:
    try:
        prepared = await connection.prepare(statement.text)
    except asyncpg.PostgresError as error:
        return [str(error)]
    if statement.fills is None:
        return []
    columns = {column.name: column.type.name for column in prepared.get_attributes()}
    return mismatches(columns, getattr(statement.store, statement.fills))


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


def test_statements_can_be_prepared_and_match_their_row_types(database: TestDatabase) -> None:
    found = database.loop.run(all_mismatches(database.dsn, ALL_STATEMENTS))
    assert not found, pformat(found)


def test_statement_that_fails_or_does_not_match_its_row_type_is_found(database: TestDatabase) -> None:
    texts = {
        "fails": "SELECT nothing FROM queues",
        "differs": "-- row: QueueRow\nSELECT id FROM queues",
        "fits": "SELECT 1",
    }
    statements = [Statement("queues", compile_statement(name, text, {})) for name, text in texts.items()]
    assert database.loop.run(all_mismatches(database.dsn, statements)).keys() == {"queues.fails", "queues.differs"}


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
