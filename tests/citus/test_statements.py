"""Citus can plan the statements, and routes those of one lane to one node, except for the listed
ones."""

from pprint import pformat

import asyncpg
import pytest

from app.db.queries import Query
from tests.database import TestDatabase
from tests.sql.cluster_rules import NOT_YET
from tests.sql.rules import ACROSS_LANES, names_its_lane
from tests.sql.statements import ALL_STATEMENTS, Statement

pytestmark = pytest.mark.citus

BREAK_A_RULE = {name for names in NOT_YET.values() for name in names}


async def plan(dsn: str, query: Query) -> str:
    """Returns the plan of a call with NULLs, except for the lane, or the error of Citus."""
    connection = await asyncpg.connect(dsn, server_settings={"citus.override_table_visibility": "off"})
    try:
        types = [parameter.name for parameter in (await connection.prepare(query.sql)).get_parameters()]
        text = query.sql
        for number, (name, kind) in reversed(list(enumerate(zip(query.parameters, types, strict=True), 1))):
            value = "256" if name == "lane" else f"NULL::{kind}"
            text = text.replace(f"${number}", value)
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (COSTS off) {text}"))
    except asyncpg.PostgresError as error:
        return f"error: {error}"
    finally:
        await connection.close()


def plans(cluster: TestDatabase, statements: list[Statement]) -> dict[str, str]:
    return {str(statement): cluster.loop.run(plan(cluster.dsn, statement.query)) for statement in statements}


def test_statement_of_one_lane_is_one_task(cluster: TestDatabase) -> None:
    one_lane = [
        statement
        for statement in ALL_STATEMENTS
        if names_its_lane(statement) and str(statement) not in ACROSS_LANES | BREAK_A_RULE
    ]
    assert len(one_lane) > 30
    spread = {
        name: text
        for name, text in plans(cluster, one_lane).items()
        if text.startswith("error") or "Task Count: 1" not in text or "Distributed Subplan" in text
    }
    assert not spread, pformat(spread)


def test_citus_plans_every_other_statement(cluster: TestDatabase) -> None:
    others = [statement for statement in ALL_STATEMENTS if str(statement) not in BREAK_A_RULE]
    failed = {name: text for name, text in plans(cluster, others).items() if text.startswith("error")}
    assert not failed, pformat(failed)
