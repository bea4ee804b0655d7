"""What EXPLAIN says about a statement, in a session of the product's own pool."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

from app.db.primary import Connection
from tests.sql.statements import Named

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scan:
    """One way in which a plan reads a table. `bound` is the condition that the index itself answers."""

    kind: str
    table: str
    index: str
    bound: str


async def explain(connection: Connection, statement: Named, *, custom: bool) -> list[Scan]:
    """The plan that serves every call (no value is known), or a plan made for one (1000 ids are sent)."""
    told = await (_custom if custom else _generic)(connection, statement)
    return [
        _scan(node)
        for node in _nodes(json.loads(told)[0]["Plan"])
        if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    ]


async def _generic(connection: Connection, statement: Named) -> str:
    parameters = (await connection.prepare(statement.text)).get_parameters()
    values = f"({', '.join(['NULL'] * len(parameters))})" if parameters else ""
    await connection.execute(f"SET plan_cache_mode = 'force_generic_plan'; PREPARE explained AS {statement.text}")
    try:
        return str(await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE explained{values}"))
    finally:
        await connection.execute("DEALLOCATE explained; RESET plan_cache_mode")


async def _custom(connection: Connection, statement: Named) -> str:
    parameters = (await connection.prepare(statement.text)).get_parameters()
    return str(
        await connection.fetchval(
            f"EXPLAIN (FORMAT JSON) {statement.text}", *[_sent(parameter.name) for parameter in parameters]
        )
    )


def _sent(kind: str) -> object:
    if kind == "uuid[]":
        return [uuid4() for _ in range(1000)]
    if kind.endswith("[]"):
        return [None] * 1000
    known = {"uuid": uuid4(), "timestamptz": datetime.now(UTC), "text": "x", "bool": False, "date": date(2000, 1, 1)}
    return known.get(kind, 256)


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _scan(node: Node) -> Scan:
    return Scan(node["Node Type"], node["Relation Name"], node.get("Index Name", ""), node.get("Index Cond", ""))
