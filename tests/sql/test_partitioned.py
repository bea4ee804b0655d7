"""Lanes as partitions: the broker behaves the same, and a statement of one lane touches one partition of each table, as it would touch
one shard of a cluster."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.db.migrations import ROOT
from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.sql.lives import live
from tests.sql.rules import ACROSS_LANES
from tests.sql.statements import ALL, LANED
from tests.sql.watched import NOTES, Touched, WatchedDatabase

BEHAVIOUR = ("tests/jobs", "tests/leases")
ONE_LANE = {statement.name for statement in ALL if str(statement) not in ACROSS_LANES and "lane = $1" in statement.code}


@pytest.fixture(scope="module")
def in_parts(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "in parts", in_parts=True), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def noted(in_parts: TestDatabase) -> dict[str, list[Touched]]:
    """By statement: which parts of which tables were touched while a few jobs lived through everything there is."""
    in_parts.execute(
        "INSERT INTO keys (lane, digest, expires_at) VALUES (7, gen_random_uuid(), now() - interval '1 day')"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.broker.Database", WatchedDatabase)
        patch.setattr(
            "app.leases.low_water_marks.EXPENSIVE_BUFFERS", -1
        )  # so that floors are used though nothing is dead
        with threaded_broker(QUICK, in_parts.dsn) as broker:
            live(Api(broker.http, "life"), in_parts)
            wait_until(lambda: {"aggregate", "delete_keys", "first_ready"} <= NOTES.keys())
    return dict(NOTES)


def names(database: TestDatabase, query: str) -> set[str]:
    return {row["name"] for row in database.rows(query)}


def test_every_laned_table_is_divided_by_lane(in_parts: TestDatabase) -> None:
    divided = names(
        in_parts, "SELECT partrelid::regclass::text AS name FROM pg_partitioned_table WHERE partstrat = 'h'"
    )
    by_time = names(
        in_parts, "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'finished_jobs'::regclass"
    )
    assert len(by_time) > 0
    assert divided == {*LANED, *by_time} - {"finished_jobs"}


def test_a_statement_of_one_lane_touches_one_part_of_each_table(noted: dict[str, list[Touched]]) -> None:
    assert noted.keys() >= ONE_LANE, "the lives leave some out"
    seen = [(name, touched) for name in ONE_LANE for touched in noted[name]]
    assert [
        (name, touched) for name, touched in seen if not touched or any(len(parts) != 1 for parts in touched.values())
    ] == []


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("enqueue", {"jobs", "stat_deltas"}),
        ("claim", {"jobs", "stat_deltas"}),
        ("requeue", {"jobs", "stat_deltas"}),
        ("complete", {"jobs", "stat_deltas"}),
        ("move_to_dead_letters", {"jobs", "dead_letters", "stat_deltas"}),
        ("replay", {"jobs", "dead_letters", "stat_deltas"}),
        ("aggregate", {"stat_deltas", "stat_totals", "stat_rates"}),
    ],
)
def test_what_a_statement_writes_is_seen(noted: dict[str, list[Touched]], name: str, tables: set[str]) -> None:
    assert any(tables <= touched.keys() for touched in noted[name])


def test_a_statement_across_lanes_is_seen_to_touch_several_parts(noted: dict[str, list[Touched]]) -> None:
    """The control: this is how it would show."""
    assert all(len(touched["jobs"]) > 1 for touched in noted["next_due"])


def test_the_broker_behaves_the_same() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--partitioned", *BEHAVIOUR]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
