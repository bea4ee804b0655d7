"""Queries that SQLAlchemy builds and asyncpg runs: reads whose WHERE clause depends on the
request."""

from functools import cache
from typing import Any

from sqlalchemy.dialects.postgresql import asyncpg as dialect
from sqlalchemy.sql import ClauseElement


@cache
def _dialect() -> Any:
    return dialect.dialect()  # type: ignore[no-untyped-call]


def compile_query(query: ClauseElement) -> tuple[Any, ...]:
    """The text and its arguments, for `db.rows(*compile_query(query))`."""
    compiled: Any = query.compile(dialect=_dialect(), compile_kwargs={"render_postcompile": True})
    arguments = compiled.construct_params()
    return str(compiled), *(arguments[name] for name in compiled.positiontup)
