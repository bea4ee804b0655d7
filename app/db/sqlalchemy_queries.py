"""Compiles queries that SQLAlchemy builds and asyncpg runs: reads whose WHERE clause depends on the
request.

Building and compiling a query takes up to 12 ms. So a query is compiled once for each combination
of tables and filtered columns. The values are bind parameters.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import asyncpg as dialect
from sqlalchemy.sql import ClauseElement

MAX_COMPILED = 1000  # queries kept for each decorated function


class CompiledQuery(NamedTuple):
    """The text of a query and the names of its parameters, in order. `constants` has the values of
    the parameters that SQLAlchemy set when it compiled the query."""

    text: str
    names: Sequence[str]
    constants: Mapping[str, object]

    def with_values(self, values: Mapping[str, object]) -> tuple[Any, ...]:
        """Returns the text and its arguments, for `db.rows(*query.with_values(values))`."""
        return self.text, *self.arguments(values)

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] if name in values else self.constants[name] for name in self.names]


def compiled_once(build: Callable[..., ClauseElement]) -> Callable[..., Awaitable[CompiledQuery]]:
    """Decorates a function that builds a query. Keeps the compiled query for each combination of
    the function's arguments.

    Compiles in a thread, so that the event loop can serve other requests.
    """
    compiled: dict[Hashable, CompiledQuery] = {}

    @wraps(build)
    async def get_compiled(*arguments: Hashable) -> CompiledQuery:
        query = compiled.get(arguments)
        if query is None:
            query = await asyncio.to_thread(lambda: _compile(build(*arguments)))
            if len(compiled) >= MAX_COMPILED:
                compiled.clear()
            compiled[arguments] = query
        return query

    return get_compiled


def parameter(name: str, kind: Any) -> sa.BindParameter[Any]:
    """Creates a bind parameter, whose value is passed when the query runs."""
    return sa.bindparam(name, type_=kind, required=False)


@cache
def _dialect() -> Any:
    return dialect.dialect()  # type: ignore[no-untyped-call]


def _compile(query: ClauseElement) -> CompiledQuery:
    compiled: Any = query.compile(dialect=_dialect(), compile_kwargs={"render_postcompile": True})
    return CompiledQuery(str(compiled), compiled.positiontup, compiled.params)
