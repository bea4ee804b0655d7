"""SQLAlchemy assembles, asyncpg runs: a query as the text and arguments that the pool takes."""

from functools import cache
from typing import Any

from sqlalchemy.dialects.postgresql import asyncpg as dialect
from sqlalchemy.sql import ClauseElement


@cache
def _dialect() -> Any:
    return dialect.dialect()  # type: ignore[no-untyped-call]


def compile_query(query: ClauseElement) -> tuple[Any, ...]:
    """(text, *arguments), for `db.rows(*compiled(query))`."""
    text: Any = query.compile(dialect=_dialect(), compile_kwargs={"render_postcompile": True})
    arguments = text.construct_params()
    return str(text), *(arguments[name] for name in text.positiontup)
