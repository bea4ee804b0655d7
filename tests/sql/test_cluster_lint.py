"""The .sql files follow the rules of cluster_rules.py, except for the statements of NOT_YET, and
every rule detects a bad statement."""

import re

import pytest

from app.db.queries import compile_statement
from tests.database import TestDatabase
from tests.sql import cluster_rules
from tests.sql.cluster_rules import CLUSTER_RULES, NOT_YET
from tests.sql.rules import Rule, violations
from tests.sql.statements import ALL_STATEMENTS, Statement

# Functions with the row type of a table in their signatures. Citus distributes the table, and the
# function must then be created again. The list may only become shorter.
NEED_A_ROW_TYPE = {
    "longshore_find_or_create_queue",
    "longshore_needs_admission",
    "longshore_replace_waiting",
    "longshore_check_max_waiting",
}
VIOLATING_STATEMENTS: dict[Rule, list[str]] = {
    cluster_rules.inserts_outside_of_ctes: [
        "WITH counted AS (\n    INSERT INTO stat_deltas (lane) VALUES (:lane)\n) SELECT 1"
    ],
    cluster_rules.ends_with_select_after_a_modifying_cte: [
        "WITH ended AS (DELETE FROM jobs WHERE lane = :lane RETURNING lane)"
        " INSERT INTO stat_deltas (lane) SELECT lane FROM ended"
    ],
    cluster_rules.sets_no_bare_subscript: [
        "UPDATE jobs SET worker_id = (:workers::text[])[1] WHERE lane = :lane",
        "UPDATE jobs SET attempt = 1, worker_id = names[1] WHERE lane = :lane",
    ],
    cluster_rules.locks_rows_of_one_table: [
        "SELECT id FROM jobs JOIN unnest(:ids::uuid[]) AS new (id) USING (id) WHERE lane = :lane FOR UPDATE OF jobs",
        "SELECT id FROM jobs, queues WHERE lane = :lane FOR UPDATE SKIP LOCKED",
    ],
    cluster_rules.resolves_conflicts_with_immutable_functions: [
        "INSERT INTO leaders (service) VALUES (:service)"
        " ON CONFLICT (service) DO UPDATE SET holder = :holder WHERE held_until < now()"
    ],
    cluster_rules.reads_lanes_one_by_one: [
        "WITH RECURSIVE found AS (SELECT 1) SELECT id FROM jobs",
        "SELECT id FROM unnest(:lanes::int[]) AS new (lane) WHERE EXISTS (SELECT FROM jobs WHERE jobs.lane = new.lane)",
    ],
    cluster_rules.changes_small_tables_alone: [
        "UPDATE queues SET deleted_at = NULL WHERE EXISTS (SELECT FROM jobs WHERE lane = :lane)"
    ],
}


@pytest.mark.parametrize("rule", CLUSTER_RULES)
def test_only_the_listed_statements_break_the_rule(rule: Rule) -> None:
    """A statement that was repaired must leave the list."""
    assert violations(rule, ALL_STATEMENTS).keys() == NOT_YET.get(rule, set())


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in VIOLATING_STATEMENTS.items() for text in texts]
)
def test_rule_detects_a_violation(rule: Rule, text: str) -> None:
    assert rule(Statement("jobs", compile_statement("bad", text, {})))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (cluster_rules.sets_no_bare_subscript, "UPDATE jobs SET worker_id = coalesce(names[1], '') WHERE lane = :lane"),
        (cluster_rules.locks_rows_of_one_table, "SELECT id FROM jobs WHERE lane = :lane ORDER BY id FOR UPDATE"),
        (
            cluster_rules.resolves_conflicts_with_immutable_functions,
            "WITH new AS (INSERT INTO lane_locks (lane) VALUES (1) ON CONFLICT DO NOTHING) SELECT count(*) FROM new",
        ),
    ],
)
def test_rule_accepts_a_form_that_citus_routes(rule: Rule, text: str) -> None:
    assert rule(Statement("jobs", compile_statement("good", text, {}))) is None


def test_every_rule_has_a_violating_statement() -> None:
    assert VIOLATING_STATEMENTS.keys() == set(CLUSTER_RULES) >= NOT_YET.keys()


def test_only_the_listed_functions_have_the_row_type_of_a_table_in_their_signature(database: TestDatabase) -> None:
    tables = {row["relname"] for row in database.rows("SELECT relname FROM pg_class WHERE relkind IN ('r', 'p')")}
    functions = database.rows(
        """
        SELECT proname AS name, pg_get_function_arguments(oid) || ' ' || pg_get_function_result(oid) AS signature
        FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace
        """
    )
    types = {row["name"]: set(re.findall(r"\w+", row["signature"])) for row in functions}
    assert {name for name, used in types.items() if used & tables} == NEED_A_ROW_TYPE
