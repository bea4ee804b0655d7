"""Queries that SQLAlchemy builds and asyncpg runs: reads whose WHERE clause depends on the request.

Building and compiling a query takes up to 12 ms. So each shape of a query, that is its tables and
the columns that it filters by, is compiled once. The values are bind parameters.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import asyncpg as dialect
from sqlalchemy.sql import ClauseElement

MAX_SHAPES = 1000


class CompiledQuery(NamedTuple):
    """The text, the names of its parameters in their order, and the values of some of them."""

    text: str
    names: Sequence[str]
    constants: Mapping[str, object]

    def with_values(self, values: Mapping[str, object]) -> tuple[Any, ...]:
        """The text and its arguments, for `db.rows(*query.with_values(values))`."""
        return self.text, *self.arguments(values)

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] if name in values else self.constants[name] for name in self.names]


def compiled_once(build: Callable[..., ClauseElement]) -> Callable[..., Awaitable[CompiledQuery]]:
    """Decorates a function that builds a query. Its arguments are the shape of the query.

    Compiles a new shape in a thread, so that the event loop can serve other requests.
    """
    compiled: dict[Hashable, CompiledQuery] = {}

    @wraps(build)
    async def get_compiled(*shape: Hashable) -> CompiledQuery:
        query = compiled.get(shape)
        if query is None:
            query = await asyncio.to_thread(lambda: _compile(build(*shape)))
            if len(compiled) >= MAX_SHAPES:
                compiled.clear()
            compiled[shape] = query
        return query

    return get_compiled


def parameter(name: str, kind: Any) -> sa.BindParameter[Any]:
    """A value that the query gets when it runs."""
    return sa.bindparam(name, type_=kind, required=False)


@cache
def _dialect() -> Any:
    return dialect.dialect()  # type: ignore[no-untyped-call]


def _compile(query: ClauseElement) -> CompiledQuery:
    compiled: Any = query.compile(dialect=_dialect(), compile_kwargs={"render_postcompile": True})
    return CompiledQuery(str(compiled), compiled.positiontup, compiled.params)
