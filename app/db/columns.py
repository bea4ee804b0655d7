"""Short forms of SQLAlchemy's columns and indexes, for the tables in tables.py."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

ColumnType = TypeEngine[Any] | type[TypeEngine[Any]]


def key(column_type: ColumnType, *names: str) -> "list[sa.Column[object]]":
    return [sa.Column(name, column_type, primary_key=True, autoincrement=False) for name in names]


def required(
    column_type: ColumnType, *names: str, default: str | sa.ColumnElement[Any] | None = None
) -> "list[sa.Column[object]]":
    return [sa.Column(name, column_type, nullable=False, server_default=default) for name in names]


def nullable(column_type: ColumnType, *names: str) -> "list[sa.Column[object]]":
    return [sa.Column(name, column_type) for name in names]


def generated(column_type: ColumnType, name: str, expression: str) -> "sa.Column[object]":
    return sa.Column(name, column_type, sa.Computed(expression, persisted=True))


def partial_index(name: str, *columns: str | sa.TextClause, where: str) -> sa.Index:
    return sa.Index(name, *columns, postgresql_where=sa.text(where))
