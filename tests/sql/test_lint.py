"""The .sql files keep the rules of rules.py, every rule can tell a bad statement, and files and stores name the same things."""

import ast
import re

import pytest

from app.db.migrations import ROOT
from tests.sql.rules import ACROSS_LANES, RULES, faults
from tests.sql.statements import ALL, Named

ROOMS = sorted({statement.room for statement in ALL})

BAD = {
    "says_its_transition": ["UPDATE jobs SET attempt = 0 WHERE lane = $1 AND id = $2"],
    "names_its_columns": [
        "SELECT * FROM queues",
        "-- a -> b\nDELETE FROM jobs WHERE lane = $1 RETURNING jobs.*",
        "WITH found AS (SELECT jobs.* FROM jobs WHERE lane = $1) SELECT id FROM found",
    ],
    "is_the_same_on_every_node": ["SELECT id FROM queues WHERE random() < $1", "SELECT gen_random_uuid()"],
    "computes_no_time_from_a_column": [
        "UPDATE keys SET expires_at = now() + make_interval(secs => ttl) WHERE lane = $1",
        "DELETE FROM keys WHERE lane = $1 AND expires_at - now() < $2",
    ],
    "wakes_nobody_and_takes_no_session_lock": [
        "NOTIFY ready",
        "SELECT pg_notify($1, $2)",
        "SELECT pg_try_advisory_lock($1)",
    ],
    "stays_in_its_lane": [
        "SELECT id FROM jobs WHERE id = $1",
        "SELECT id FROM jobs WHERE lane = $12",
        "SELECT id FROM jobs WHERE lane = $1 UNION ALL SELECT id FROM dead_letters WHERE id = $2",
        "INSERT INTO keys (lane, digest) VALUES ($2, $1)",
        "INSERT INTO keys (digest, lane) VALUES ($1, $2)",
    ],
    "locks_within_one_lane_in_the_order_of_ids": [
        "SELECT id FROM jobs WHERE id = ANY($1) ORDER BY id FOR UPDATE",
        "SELECT id FROM jobs WHERE lane = $1 AND id = ANY($2) FOR UPDATE",
    ],
    "writes_no_lane_if_across_lanes": ["-- scheduled -> ready\nUPDATE jobs SET state = 'ready' WHERE run_at < $1"],
}


@pytest.mark.parametrize("statement", ALL, ids=str)
def test_a_statement_keeps_the_rules(statement: Named) -> None:
    assert list(faults(statement)) == []


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in BAD.items() for text in texts])
def test_a_rule_finds_what_it_is_for(rule: str, text: str) -> None:
    room, name = ("jobs", "due_jobs") if rule == "writes_no_lane_if_across_lanes" else ("jobs", "bad")
    assert any(fault.startswith(f"{rule}: ") for fault in faults(Named(room, name, text, None)))


def test_every_rule_has_a_statement_that_breaks_it() -> None:
    assert {rule.__name__ for rule in RULES} == BAD.keys()


def test_the_exceptions_exist() -> None:
    assert {str(statement) for statement in ALL} >= ACROSS_LANES


def test_names_are_unique_in_the_whole_product() -> None:
    """They are the labels under which pg_stat_statements and the logs show a statement."""
    names = [statement.name for statement in ALL]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("room", ROOMS)
def test_every_statement_of_a_room_is_run_by_its_store_and_no_other(room: str) -> None:
    written = {statement.name for statement in ALL if statement.room == room}
    assert set(re.findall(r"\bSQL\.(\w+)", (ROOT / "app" / room / "store.py").read_text())) == written
    others = [
        file
        for file in (ROOT / "app" / room).glob("*.py")
        if file.name != "store.py" and re.search(r"(?<!\.)\bSQL\.[a-z]", file.read_text())
    ]
    assert others == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_function_of_a_store_that_runs_one_statement_bears_its_name(room: str) -> None:
    tree = ast.parse((ROOT / "app" / room / "store.py").read_text())
    functions = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    run = {name: set(re.findall(r"\bSQL\.(\w+)", body)) for name, body in functions.items()}
    assert run
    assert {name: ran for name, ran in run.items() if not ran or (len(ran) == 1 and ran != {name})} == {}
