"""Lanes as partitions: the broker behaves the same, and a statement of one lane uses one
partition of each table, as it would use one shard of a cluster."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.db.migrations import ROOT
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database
from tests.sql.lifecycles import run_all_lifecycles
from tests.sql.recording_database import RECORDED, PartitionsByTable, RecordingDatabase
from tests.sql.rules import ACROSS_LANES, names_its_lane
from tests.sql.statements import ALL_STATEMENTS, TABLES_WITH_LANES

BEHAVIOUR = ("tests/api/jobs", "tests/api/leases")
ONE_LANE = {
    statement.name for statement in ALL_STATEMENTS if str(statement) not in ACROSS_LANES and names_its_lane(statement)
}


@pytest.fixture(scope="module")
def partitioned_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "partitioned", partitioned=True), loop)
    yield database
    database.close()


@pytest.fixture(scope="module")
def recorded(partitioned_database: TestDatabase) -> dict[str, list[PartitionsByTable]]:
    """Returns the partitions locked by each statement while jobs ran through all lifecycles."""
    partitioned_database.execute(
        "INSERT INTO deduplication_keys (lane, digest, expires_at)"
        " VALUES (7, gen_random_uuid(), now() - interval '1 day')"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.broker.Database", RecordingDatabase)
        # Makes claims use the low-water marks although there are no dead tuples.
        patch.setattr("app.leases.low_water_marks.EXPENSIVE_BUFFERS", -1)
        with threaded_broker(TEST_SETTINGS, partitioned_database.dsn) as broker:
            run_all_lifecycles(Api(broker.http, "life"), partitioned_database)
            wait_until(lambda: {"aggregate", "delete_keys", "first_ready"} <= RECORDED.keys())
    return dict(RECORDED)


def names(database: TestDatabase, query: str) -> set[str]:
    return {row["name"] for row in database.rows(query)}


def test_every_table_with_lanes_is_partitioned_by_lane(partitioned_database: TestDatabase) -> None:
    partitioned = names(
        partitioned_database, "SELECT partrelid::regclass::text AS name FROM pg_partitioned_table WHERE partstrat = 'h'"
    )
    by_time = names(
        partitioned_database,
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'finished_jobs'::regclass",
    )
    assert len(by_time) > 0
    assert partitioned == {*TABLES_WITH_LANES, *by_time} - {"finished_jobs"}


def test_statement_of_one_lane_uses_one_partition_of_each_table(recorded: dict[str, list[PartitionsByTable]]) -> None:
    assert recorded.keys() >= ONE_LANE, "the lifecycles do not run some statements"
    uses = [(name, partitions) for name in ONE_LANE for partitions in recorded[name]]
    assert [
        (name, partitions)
        for name, partitions in uses
        if not partitions or any(len(of_table) != 1 for of_table in partitions.values())
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
def test_recording_contains_the_written_tables(
    recorded: dict[str, list[PartitionsByTable]], name: str, tables: set[str]
) -> None:
    assert any(tables <= partitions.keys() for partitions in recorded[name])


def test_recording_shows_several_partitions_of_a_statement_across_lanes(
    recorded: dict[str, list[PartitionsByTable]],
) -> None:
    """Control: the recording shows several partitions when a statement uses them."""
    assert all(len(partitions["jobs"]) > 1 for partitions in recorded["next_due"])


def test_job_and_lease_tests_pass_on_partitioned_tables() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--partitioned", *BEHAVIOUR]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
