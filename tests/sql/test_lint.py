"""The .sql files follow the rules of rules.py, every rule detects a bad statement, and .sql
files and stores have the same names."""

import ast
import re
from pprint import pformat

import pytest

from app.db.migrations import ROOT
from app.db.queries import compile_statement
from tests.sql import rules
from tests.sql.rules import ACROSS_LANES, RULES, Rule, violations
from tests.sql.statements import ALL_STATEMENTS, TABLES_WITH_LANES, Statement

PACKAGES = sorted({statement.package for statement in ALL_STATEMENTS})

VIOLATING_STATEMENTS: dict[Rule, list[str]] = {
    rules.names_its_transition: ["UPDATE jobs SET attempt = 0 WHERE lane = :lane AND id = :id"],
    rules.names_its_columns: [
        "SELECT * FROM queues",
        "-- a -> b\nDELETE FROM jobs WHERE lane = :lane RETURNING jobs.*",
        "WITH found AS (SELECT jobs.* FROM jobs WHERE lane = :lane) SELECT id FROM found",
    ],
    rules.is_deterministic: ["SELECT id FROM queues WHERE random() < :share", "SELECT gen_random_uuid()"],
    rules.computes_no_time_from_columns: [
        "UPDATE deduplication_keys SET expires_at = now() + make_interval(secs => ttl) WHERE lane = :lane",
        "DELETE FROM deduplication_keys WHERE lane = :lane AND expires_at - now() < :age",
    ],
    rules.uses_no_notify_and_no_session_lock: [
        "NOTIFY ready",
        "SELECT pg_notify(:channel, :payload)",
        "SELECT pg_try_advisory_lock(:number)",
    ],
    rules.stays_in_its_lane: [
        "SELECT id FROM jobs WHERE id = :id",
        "SELECT id FROM jobs WHERE lane = $12",
        "SELECT id FROM jobs WHERE lane = :lanes",
        "SELECT id FROM jobs WHERE lane = :lane UNION ALL SELECT id FROM dead_letters WHERE id = :id",
        "INSERT INTO deduplication_keys (lane, digest) VALUES (:digest, :lane)",
        "INSERT INTO deduplication_keys (digest, lane) VALUES (:lane, :digest)",
    ],
    rules.locks_one_lane_in_id_order: [
        "SELECT id FROM jobs WHERE id = ANY(:ids) ORDER BY id FOR UPDATE",
        "SELECT id FROM jobs WHERE lane = :lane AND id = ANY(:ids) FOR UPDATE",
    ],
    rules.covers_ready_jobs: [
        "-- blocked -> ready\nUPDATE jobs SET state = 'ready' WHERE lane = :lane",
        "-- pending -> ready\nUPDATE jobs SET state = CASE WHEN admission IS NULL THEN 'pending' ELSE 'ready' END"
        " WHERE lane = :lane",
        "-- dead -> ready\nINSERT INTO jobs (lane, id, state) VALUES (:lane, :id, 'ready')",
    ],
    rules.moves_no_jobs_across_lanes: ["-- scheduled -> ready\nUPDATE jobs SET state = 'ready' WHERE run_at < :now"],
}


FUNCTIONS = {
    name: text
    for file in sorted((ROOT / "alembic" / "versions").glob("*.up.sql"))
    for name, text in re.findall(r"^CREATE FUNCTION (\w+)\((.*?)^\$\$;", file.read_text(), re.DOTALL | re.MULTILINE)
}


def test_functions_that_make_jobs_ready_insert_ready_spans() -> None:
    assert {"claim_jobs", "longshore_enqueue_v1", "longshore_replace_waiting"} <= FUNCTIONS.keys()
    assert [name for name, text in FUNCTIONS.items() if not rules.covers_ready_jobs_in(text)] == []
    without_span = FUNCTIONS["longshore_replace_waiting"].replace("INSERT INTO ready_spans", "")
    assert not rules.covers_ready_jobs_in(without_span), "control"


def test_claim_function_can_be_run_on_the_node_of_its_lane() -> None:
    """See docs/architecture/sql.md: the lane is the first argument, every table is read by lane, and what
    a cluster rejects is not used."""
    signature, body = FUNCTIONS["claim_jobs"].split("AS $$", 1)
    assert signature.split()[:2] == ["claim_lane", "int,"]
    code = re.sub(r"--[^\n]*", "", body)
    tables = re.findall(rf"\b(?:FROM|UPDATE|JOIN|INTO) (?:{'|'.join(TABLES_WITH_LANES)})\b", code)
    assert len(tables) == len(re.findall(r"\blane = claim_lane\b|\(lane, ", code))
    assert not re.search(r"\bWITH\b(?! ORDINALITY)", code), "no INSERT in a CTE"
    assert not re.search(r"\b\w+ = \w+\[", code), "no bare subscript as the value of a SET"
    locking = re.findall(r"SELECT\b(?:(?!SELECT).)*?FOR UPDATE", code, re.DOTALL)
    assert locking
    assert [lock for lock in locking if lock.count("FROM") != 1 or "JOIN" in lock] == [], "locks rows of one table"


@pytest.mark.parametrize("rule", RULES)
def test_statements_follow_the_rule(rule: Rule) -> None:
    found = violations(rule, ALL_STATEMENTS)
    assert not found, pformat(found)


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in VIOLATING_STATEMENTS.items() for text in texts]
)
def test_rule_detects_a_violation(rule: Rule, text: str) -> None:
    package, name = ("jobs", "due_jobs") if rule is rules.moves_no_jobs_across_lanes else ("jobs", "bad")
    bad = Statement(package, compile_statement(name, text, {}))
    assert violations(rule, [*ALL_STATEMENTS, bad]).keys() == {str(bad)}


def test_every_rule_has_a_violating_statement() -> None:
    assert VIOLATING_STATEMENTS.keys() == set(RULES)


def test_every_exception_is_an_existing_statement() -> None:
    assert {str(statement) for statement in ALL_STATEMENTS} >= ACROSS_LANES


def test_statement_names_are_unique() -> None:
    """Statement names are the labels in pg_stat_statements and in the logs."""
    names = [statement.name for statement in ALL_STATEMENTS]
    assert sorted(names) == sorted(set(names))


def test_every_statement_is_run_by_the_store_of_its_package_only() -> None:
    in_files = {package: {statement.name for statement in of_package(package)} for package in PACKAGES}
    assert {package: statements_run_by(store_source(package)) for package in PACKAGES} == in_files
    others = [
        file
        for package in PACKAGES
        for file in (ROOT / "app" / package).glob("*.py")
        if file.name != "store.py" and re.search(r"(?<!\.)\bSQL\.[a-z]", file.read_text())
    ]
    assert others == []


def test_store_function_with_one_statement_has_its_name() -> None:
    run_by = {package: statements_by_function(store_source(package)) for package in PACKAGES}
    assert all(run_by.values())
    assert [
        (package, function, run)
        for package, functions in run_by.items()
        for function, run in functions.items()
        if not run or (len(run) == 1 and run != {function})
    ] == []


def of_package(package: str) -> list[Statement]:
    return [statement for statement in ALL_STATEMENTS if statement.package == package]


def store_source(package: str) -> str:
    return (ROOT / "app" / package / "store.py").read_text()


def statements_run_by(source: str) -> set[str]:
    return set(re.findall(r"\bSQL\.(\w+)", source))


def statements_by_function(source: str) -> dict[str, set[str]]:
    """The statements that each function runs, itself or by calling another function of the store."""
    functions = {
        node.name: ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.AsyncFunctionDef)
    }
    return {
        name: statements_run_by(text).union(
            *(statements_run_by(functions[called]) for called in functions if re.search(rf"(?<![.\w]){called}\(", text))
        )
        for name, text in functions.items()
    }
