"""The .sql files follow the rules of rules.py, every rule detects a bad statement, and .sql
files and stores have the same names."""

import ast
import re

import pytest

from app.db.migrations import ROOT
from app.db.queries import compile_statement
from tests.sql.rules import ACROSS_LANES, RULES, violations
from tests.sql.statements import ALL_STATEMENTS, Statement

PACKAGES = sorted({statement.package for statement in ALL_STATEMENTS})

VIOLATING_STATEMENTS = {
    "names_its_transition": ["UPDATE jobs SET attempt = 0 WHERE lane = $1 AND id = $2"],
    "names_its_columns": [
        "SELECT * FROM queues",
        "-- a -> b\nDELETE FROM jobs WHERE lane = $1 RETURNING jobs.*",
        "WITH found AS (SELECT jobs.* FROM jobs WHERE lane = $1) SELECT id FROM found",
    ],
    "is_deterministic": ["SELECT id FROM queues WHERE random() < $1", "SELECT gen_random_uuid()"],
    "computes_no_time_from_columns": [
        "UPDATE deduplication_keys SET expires_at = now() + make_interval(secs => ttl) WHERE lane = $1",
        "DELETE FROM deduplication_keys WHERE lane = $1 AND expires_at - now() < $2",
    ],
    "uses_no_notify_and_no_session_lock": [
        "NOTIFY ready",
        "SELECT pg_notify($1, $2)",
        "SELECT pg_try_advisory_lock($1)",
    ],
    "stays_in_its_lane": [
        "SELECT id FROM jobs WHERE id = $1",
        "SELECT id FROM jobs WHERE lane = $12",
        "SELECT id FROM jobs WHERE lane = $1 UNION ALL SELECT id FROM dead_letters WHERE id = $2",
        "INSERT INTO deduplication_keys (lane, digest) VALUES ($2, $1)",
        "INSERT INTO deduplication_keys (digest, lane) VALUES ($1, $2)",
    ],
    "locks_one_lane_in_id_order": [
        "SELECT id FROM jobs WHERE id = ANY($1) ORDER BY id FOR UPDATE",
        "SELECT id FROM jobs WHERE lane = $1 AND id = ANY($2) FOR UPDATE",
    ],
    "moves_no_jobs_across_lanes": ["-- scheduled -> ready\nUPDATE jobs SET state = 'ready' WHERE run_at < $1"],
}


@pytest.mark.parametrize("statement", ALL_STATEMENTS, ids=str)
def test_statement_follows_all_rules(statement: Statement) -> None:
    assert list(violations(statement)) == []


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in VIOLATING_STATEMENTS.items() for text in texts]
)
def test_rule_detects_a_violation(rule: str, text: str) -> None:
    package, name = ("jobs", "due_jobs") if rule == "moves_no_jobs_across_lanes" else ("jobs", "bad")
    assert any(
        fault.startswith(f"{rule}: ") for fault in violations(Statement(package, compile_statement(name, text, {})))
    )


def test_every_rule_has_a_violating_statement() -> None:
    assert {rule.__name__ for rule in RULES} == VIOLATING_STATEMENTS.keys()


def test_every_exception_is_an_existing_statement() -> None:
    assert {str(statement) for statement in ALL_STATEMENTS} >= ACROSS_LANES


def test_statement_names_are_unique() -> None:
    """Statement names are the labels in pg_stat_statements and in the logs."""
    names = [statement.name for statement in ALL_STATEMENTS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_statement_is_run_by_the_store_of_its_package_only(package: str) -> None:
    names = {statement.name for statement in ALL_STATEMENTS if statement.package == package}
    assert set(re.findall(r"\bSQL\.(\w+)", (ROOT / "app" / package / "store.py").read_text())) == names
    others = [
        file
        for file in (ROOT / "app" / package).glob("*.py")
        if file.name != "store.py" and re.search(r"(?<!\.)\bSQL\.[a-z]", file.read_text())
    ]
    assert others == []


@pytest.mark.parametrize("package", PACKAGES)
def test_store_function_with_one_statement_has_its_name(package: str) -> None:
    tree = ast.parse((ROOT / "app" / package / "store.py").read_text())
    functions = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    statements = {name: set(re.findall(r"\bSQL\.(\w+)", body)) for name, body in functions.items()}
    assert statements
    assert {name: run for name, run in statements.items() if not run or (len(run) == 1 and run != {name})} == {}
