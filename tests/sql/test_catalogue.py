"""The rules for tables with lanes, checked in the system catalogue: a cluster sharded by lane
needs them."""

import re

import pytest

from tests.database import TestDatabase
from tests.sql.statements import TABLES_WITH_LANES

SELECT_TABLES_WITH_LANES = """
SELECT relation.oid::regclass::text AS name
FROM pg_class AS relation
JOIN pg_attribute AS lane ON lane.attrelid = relation.oid AND lane.attname = 'lane'
WHERE relation.relnamespace = 'public'::regnamespace AND relation.relkind IN ('r', 'p')
"""


def names(database: TestDatabase, query: str) -> list[str]:
    return [row["name"] for row in database.rows(query)]


def test_tables_with_a_lane_column_are_the_listed_ones(database: TestDatabase) -> None:
    roots = f"{SELECT_TABLES_WITH_LANES} AND NOT relation.relispartition"
    assert sorted(names(database, roots)) == sorted(TABLES_WITH_LANES)


def test_lane_is_a_non_null_integer(database: TestDatabase) -> None:
    query = f"""
    SELECT attrelid::regclass::text AS name, atttypid::regtype::text AS type, attnotnull
    FROM pg_attribute
    WHERE attname = 'lane' AND attrelid::regclass::text IN ({SELECT_TABLES_WITH_LANES})
    """
    assert {(row["type"], row["attnotnull"]) for row in database.rows(query)} == {("integer", True)}


def test_unique_indexes_of_tables_with_lanes_start_with_the_lane(database: TestDatabase) -> None:
    unique = f"""
    SELECT index.indexrelid::regclass::text AS name, first.attname
    FROM pg_index AS index
    JOIN pg_attribute AS first ON first.attrelid = index.indrelid AND first.attnum = index.indkey[0]
    WHERE index.indisunique AND index.indrelid::regclass::text IN ({SELECT_TABLES_WITH_LANES})
    """
    first_columns = {row["name"]: row["attname"] for row in database.rows(unique)}
    assert {
        "jobs_pkey",
        "dead_letters_pkey",
        "deduplication_keys_pkey",
        "stat_totals_pkey",
        "stat_rates_pkey",
        "stat_durations_pkey",
    } <= first_columns.keys()
    assert set(first_columns.values()) == {"lane"}, first_columns


def test_rows_of_tables_with_lanes_are_identified_by_a_primary_key_or_as_a_whole(database: TestDatabase) -> None:
    """Without that, shards of the table could not be moved while rows are changed or deleted."""
    unidentified = f"""
    {SELECT_TABLES_WITH_LANES}
        AND relation.relreplident <> 'f'
        AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = relation.oid AND indisprimary)
    """
    assert names(database, unidentified) == []


def test_new_partition_identifies_its_rows_as_a_whole(database: TestDatabase) -> None:
    with database.uncommitted("SELECT create_finished_partition('2020-01-01', false)") as run:
        identity = "SELECT 1 / (relreplident = 'f')::int FROM pg_class WHERE relname = 'finished_jobs_20200101'"
        assert run(identity) == "SELECT 1"


def test_security_definer_functions_set_what_the_caller_could_have_changed(database: TestDatabase) -> None:
    functions = database.rows("SELECT proname, proconfig FROM pg_proc WHERE prosecdef AND proname !~ '^(pg|citus)_'")
    settings = {row["proname"]: set(row["proconfig"]) for row in functions}
    assert len(settings) == 3
    needed = {"search_path=public, pg_temp", "DateStyle=ISO, MDY", "standard_conforming_strings=on"}
    assert {name: needed - found for name, found in settings.items() if not needed <= found} == {}


@pytest.mark.parametrize(
    ("kind", "query"),
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
def test_schema_has_no_object_that_sharding_forbids(database: TestDatabase, kind: str, query: str) -> None:
    assert names(database, query) == [], kind


def test_no_index_of_jobs_contains_a_column_that_claims_and_heartbeats_change(database: TestDatabase) -> None:
    """Otherwise these updates are not HOT. Generated columns are NULL before and after a plain claim."""
    definitions = {
        row["name"]: row["definition"]
        for row in database.rows(
            """
            SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition
            FROM pg_index
            WHERE indrelid = 'jobs'::regclass
            """
        )
    }
    assert "jobs_due" in definitions
    changed = r"\b(state|attempt|deliveries|worker_id|lease_token|lease_expires_at|started_at|progress|checkpoint)\b"
    assert [name for name, definition in definitions.items() if re.search(changed, definition)] == []


def test_ready_spans_are_read_in_the_order_of_claims(database: TestDatabase) -> None:
    definition = database.value("SELECT pg_get_indexdef('ready_spans_order'::regclass)")
    assert definition.endswith("(lane, priority DESC, first_id)")


def test_column_defaults_of_tables_with_lanes_are_constants_or_now(database: TestDatabase) -> None:
    """A default is evaluated on the node that writes the row, so it must be a constant or now()."""
    defaults = f"""
    SELECT DISTINCT pg_get_expr(adbin, adrelid) AS name
    FROM pg_attrdef
    JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum AND attgenerated = ''
    WHERE adrelid::regclass::text IN ({SELECT_TABLES_WITH_LANES})
    """
    assert sorted(names(database, defaults)) == ["0", "now()"]
