"""The lane rules, as the catalogue of the migrated database tells them: what a cluster sharded by lane needs."""

import re

import pytest

from tests.database import TestDatabase
from tests.sql.statements import LANED

LANED_TABLES = """
SELECT relation.oid::regclass::text AS name
FROM pg_class AS relation
JOIN pg_attribute AS lane ON lane.attrelid = relation.oid AND lane.attname = 'lane'
WHERE relation.relnamespace = 'public'::regnamespace AND relation.relkind IN ('r', 'p')
"""


def names(database: TestDatabase, query: str) -> list[str]:
    return [row["name"] for row in database.rows(query)]


def test_the_laned_tables_are_the_ones_we_know(database: TestDatabase) -> None:
    roots = f"{LANED_TABLES} AND NOT relation.relispartition"
    assert sorted(names(database, roots)) == sorted(LANED)


def test_every_lane_is_a_number_and_never_missing(database: TestDatabase) -> None:
    told = f"""
    SELECT attrelid::regclass::text AS name, atttypid::regtype::text AS type, attnotnull
    FROM pg_attribute
    WHERE attname = 'lane' AND attrelid::regclass::text IN ({LANED_TABLES})
    """
    assert {(row["type"], row["attnotnull"]) for row in database.rows(told)} == {("integer", True)}


def test_every_primary_key_and_unique_index_of_a_laned_table_starts_with_the_lane(database: TestDatabase) -> None:
    unique = f"""
    SELECT index.indexrelid::regclass::text AS name, first.attname
    FROM pg_index AS index
    JOIN pg_attribute AS first ON first.attrelid = index.indrelid AND first.attnum = index.indkey[0]
    WHERE index.indisunique AND index.indrelid::regclass::text IN ({LANED_TABLES})
    """
    found = {row["name"]: row["attname"] for row in database.rows(unique)}
    assert {
        "jobs_pkey",
        "dead_letters_pkey",
        "keys_pkey",
        "stat_totals_pkey",
        "stat_rates_pkey",
        "stat_times_pkey",
    } <= found.keys()
    assert set(found.values()) == {"lane"}, found


@pytest.mark.parametrize(
    ("what", "query"),
    [
        ("foreign keys", "SELECT conname AS name FROM pg_constraint WHERE contype = 'f'"),
        ("triggers", "SELECT tgname AS name FROM pg_trigger WHERE NOT tgisinternal"),
        ("rules", "SELECT rulename AS name FROM pg_rules WHERE schemaname = 'public'"),
        (
            "sequences",
            "SELECT relname AS name FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace",
        ),
        ("identity columns", "SELECT attname AS name FROM pg_attribute WHERE attidentity <> ''"),
        ("enum types", "SELECT enumlabel AS name FROM pg_enum"),
        (
            "SQL functions",
            """
            SELECT proname AS name
            FROM pg_proc
            JOIN pg_language ON pg_language.oid = prolang
            WHERE lanname = 'sql' AND pronamespace = 'public'::regnamespace
            """,
        ),
    ],
)
def test_there_are_none_of(database: TestDatabase, what: str, query: str) -> None:
    assert names(database, query) == [], what


def test_the_claim_index_holds_ready_rows_only_in_the_order_of_the_claim(database: TestDatabase) -> None:
    definition = database.value("SELECT pg_get_indexdef('jobs_ready'::regclass)")
    columns, condition = re.fullmatch(r".*\(lane, (.*)\) WHERE \((.*)\)", definition).groups()  # type: ignore[union-attr]
    assert columns == "priority DESC, id"
    assert condition == "state = 'ready'::text"


def test_defaults_of_laned_tables_are_the_same_on_every_node(database: TestDatabase) -> None:
    """A default runs where the row is written: anything but a constant or now() would differ or need a sequence."""
    defaults = f"""
    SELECT DISTINCT pg_get_expr(adbin, adrelid) AS name
    FROM pg_attrdef
    WHERE adrelid::regclass::text IN ({LANED_TABLES})
    """
    assert sorted(names(database, defaults)) == ["0", "now()"]
