"""Runs EXPLAIN on a statement, in a session of the broker's own connection pool."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import asyncpg

from app.db.primary import Connection
from tests.sql.statements import Statement

Node = dict[str, Any]

# Sends the plan of every statement, also of those in functions, to the client as a log message.
AUTO_EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_format = 'json'
"""


class Rollback(Exception):
    """Rolls back the transaction of `explain_nested`."""


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a table in a plan.

    `condition` is the part of the filter that the index evaluates."""

    kind: str
    table: str
    index: str
    condition: str


async def explain(connection: Connection, statement: Statement, *, custom: bool) -> list[Scan]:
    """Returns the scans of the generic plan, or of a custom plan for a call with 1000 ids."""
    plan = await (_custom if custom else _generic)(connection, statement)
    return _scans(json.loads(plan)[0]["Plan"])


async def explain_nested(connection: Connection, sql: str, *args: object, custom: bool) -> list[Scan]:
    """Runs a statement and rolls it back. Returns the scans of all statements in its functions."""
    messages: list[str] = []

    def record(_: object, message: asyncpg.PostgresLogMessage) -> None:
        messages.append(str(message.message))

    await connection.execute(f"{AUTO_EXPLAIN}; SET plan_cache_mode = 'force_{'custom' if custom else 'generic'}_plan'")
    connection.add_log_listener(record)
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL client_min_messages = 'log'")
            await connection.fetch(sql, *args)
            await connection.execute("SET LOCAL client_min_messages = 'warning'")
            raise Rollback
    except Rollback:
        await connection.execute("RESET plan_cache_mode; SET auto_explain.log_min_duration = -1")
    finally:
        connection.remove_log_listener(record)
    plans = [json.loads(text[text.index("{") :])["Plan"] for text in messages if "plan:" in text]
    return [scan for plan in plans for scan in _scans(plan)]


async def _generic(connection: Connection, statement: Statement) -> str:
    parameters = (await connection.prepare(statement.text)).get_parameters()
    values = f"({', '.join(['NULL'] * len(parameters))})" if parameters else ""
    await connection.execute(f"SET plan_cache_mode = 'force_generic_plan'; PREPARE explained AS {statement.text}")
    try:
        return str(await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE explained{values}"))
    finally:
        await connection.execute("DEALLOCATE explained; RESET plan_cache_mode")


async def _custom(connection: Connection, statement: Statement) -> str:
    parameters = (await connection.prepare(statement.text)).get_parameters()
    return str(
        await connection.fetchval(
            f"EXPLAIN (FORMAT JSON) {statement.text}", *[_sample_value(parameter.name) for parameter in parameters]
        )
    )


def _sample_value(kind: str) -> object:
    if kind == "uuid[]":
        return [uuid4() for _ in range(1000)]
    if kind.endswith("[]"):
        return [None] * 1000
    samples = {
        "uuid": uuid4(),
        "timestamptz": datetime.now(UTC),
        "text": "x",
        "bool": False,
        "bytea": b"x",
        "date": date(2000, 1, 1),
    }
    return samples.get(kind, 256)


def _scans(plan: Node) -> list[Scan]:
    return [_scan(node) for node in _nodes(plan) if "Relation Name" in node and node["Node Type"] != "ModifyTable"]


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _scan(node: Node) -> Scan:
    return Scan(node["Node Type"], node["Relation Name"], node.get("Index Name", ""), node.get("Index Cond", ""))
