"""Distributes the tables over the nodes of a Citus cluster: `missing_steps` says what is to be done.

    table with a lane    sharded by lane, with all others, so that a lane is on one node
    leaders and the like stays on the coordinator, so that no service needs every node
    any other table      a reference table: each node has a copy

The steps come from a comparison with what Citus reports. So a repeated run continues where the last
one stopped, and does nothing if nothing is missing.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.db.pool import Executor
from app.db.primary import Connection
from app.db.session_settings import CLUSTER
from app.db.tables import metadata

LANED = tuple(name for name, table in metadata.tables.items() if "lane" in table.c)
# The brokers write these tables every few seconds. As reference tables they could be written only
# while every node runs.
COORDINATOR_ONLY = ("leaders", "clock_lags", "workers", "poll_history")
SHARDED, COPIED, LOCAL = "distributed", "reference", "local"
LOWEST_VERSION = (14, 0)

HAS_CITUS = "SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL"
_KINDS = """
SELECT logicalrelid::regclass::text AS name,
       CASE WHEN partmethod = 'h' THEN 'distributed' WHEN repmodel = 't' THEN 'reference' ELSE 'local' END AS kind
FROM pg_dist_partition
"""
# A table that Citus has distributed still has its old rows on the coordinator, out of sight.
_HIDDEN_ROWS = """
SELECT logicalrelid::regclass::text AS name
FROM pg_dist_partition
JOIN pg_class ON pg_class.oid = logicalrelid
WHERE NOT (partmethod = 'n' AND repmodel = 's') AND relkind = 'r' AND pg_relation_size(logicalrelid) > 0
ORDER BY 1
"""
_NODES = """
SELECT nodename || ':' || nodeport AS address, coalesce(result, '') AS result
FROM run_command_on_all_nodes($1)
JOIN pg_dist_node USING (nodeid)
ORDER BY nodeid
"""
# A query that is true on a node that is set up, and the rule.
_NODE_RULES = {
    "SELECT current_setting('wal_level') = 'logical'": "wal_level must be logical",
    "SELECT current_setting('max_prepared_transactions')::int > 0": "max_prepared_transactions must not be 0",
    "SELECT coalesce(current_setting('output_plugin_libraries', true) LIKE '%citus%', true)": (
        "output_plugin_libraries must contain citus"
    ),
}


class Step(NamedTuple):
    """One statement for the coordinator, and what it does."""

    text: str
    sql: str


def tables() -> dict[str, str]:
    """Returns the kind that each table has in a cluster."""
    names = [name for name in metadata.tables if name not in (*LANED, *COORDINATOR_ONLY)]
    return {
        **dict.fromkeys([*names, "alembic_version"], COPIED),
        **dict.fromkeys(COORDINATOR_ONLY, LOCAL),
        **dict.fromkeys(LANED, SHARDED),
    }


def table_steps(kinds: Mapping[str, str]) -> list[Step]:
    """Returns the steps for the tables that do not have their kind yet. `jobs` is the first table
    with lanes; all others have their shards where it has them."""
    return [_table_step(name, kind) for name, kind in tables().items() if kinds.get(name) != kind]


def _table_step(name: str, kind: str) -> Step:
    if kind == COPIED:
        return Step(f"copy {name} to every node", f"SELECT create_reference_table('{name}')")
    if kind == LOCAL:
        return Step(f"keep {name} on the coordinator", f"SELECT citus_add_local_table_to_metadata('{name}')")
    colocated = "none" if name == "jobs" else "jobs"
    return Step(
        f"shard {name} by lane",
        f"SELECT create_distributed_table_concurrently('{name}', 'lane', colocate_with => '{colocated}')",
    )


def role_steps(role: str, found: Sequence[str]) -> list[Step]:
    """Returns the steps that give the role of the brokers its session settings on every node.
    `found` has the settings of the role on each node."""
    quoted = '"' + role.replace('"', '""') + '"'
    return [
        Step(f"set {name} for the role {role}", f"ALTER ROLE {quoted} SET {name} = '{value}'")
        for name, value in CLUSTER.items()
        if not all(f"{name}={value}" in settings.split("\n") for settings in found)
    ]


async def kinds(db: Executor) -> dict[str, str]:
    """Returns what Citus reports for each table. Postgres without Citus has none."""
    if not await db.value(HAS_CITUS):
        return {}
    return {row["name"]: row["kind"] for row in await db.rows(_KINDS)}


async def undistributed(db: Executor) -> list[str]:
    """Returns the tables that a migration has added after the tables were distributed. A database
    whose jobs are not distributed is no cluster, and returns none."""
    found = await kinds(db)
    return [name for name, kind in tables().items() if found.get(name) != kind] if "jobs" in found else []


async def missing_steps(connection: Connection, role: str | None) -> list[Step]:
    found = {row["name"]: row["kind"] for row in await connection.fetch(_KINDS)}
    settings = [result for _, result in await _on_all_nodes(connection, _role_settings(role))] if role else []
    steps = [*(role_steps(role, settings) if role else []), *table_steps(found)]
    return [*steps, *[_hidden_rows_step(row["name"]) for row in await connection.fetch(_HIDDEN_ROWS)]]


def _role_settings(role: str) -> str:
    literal = role.replace("'", "''")
    return f"""
    SELECT coalesce(array_to_string(max(setconfig), E'\\n'), '')
    FROM pg_roles
    LEFT JOIN pg_db_role_setting ON setrole = pg_roles.oid AND setdatabase = 0
    WHERE rolname = '{literal}'
    """  # noqa: S608 - the name is quoted


def _hidden_rows_step(name: str) -> Step:
    sql = f"SELECT truncate_local_data_after_distributing_table('{name}')"
    return Step(f"delete the copy of {name} that is left on the coordinator", sql)


async def problems(connection: Connection) -> list[str]:
    """Returns what keeps the tables from being distributed, in sentences for the operator."""
    if not await connection.fetchval(HAS_CITUS):
        return ["the database has no extension citus: run CREATE EXTENSION citus on every node"]
    version = await connection.fetchval("SELECT extversion FROM pg_extension WHERE extname = 'citus'")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < LOWEST_VERSION:
        return [f"citus is {version}, but must be at least {'.'.join(map(str, LOWEST_VERSION))}"]
    if not await connection.fetchval("SELECT count(*) FROM pg_dist_node WHERE groupid > 0 AND isactive"):
        return ["the cluster has no worker nodes: run SELECT citus_add_node('host', 5432)"]
    return [
        problem for query, sentence in _NODE_RULES.items() for problem in await _broken(connection, query, sentence)
    ]


async def _broken(connection: Connection, query: str, sentence: str) -> list[str]:
    """Returns the sentence with the addresses of the nodes for which the query is not true."""
    addresses = [address for address, result in await _on_all_nodes(connection, query) if result not in ("t", "true")]
    return [f"{sentence} (not so: {', '.join(addresses)})"] if addresses else []


async def _on_all_nodes(connection: Connection, query: str) -> list[tuple[str, str]]:
    return [(row["address"], row["result"]) for row in await connection.fetch(_NODES, query)]
