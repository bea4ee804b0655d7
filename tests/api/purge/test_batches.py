"""A purge works in batches, rescans the lanes, and records removed jobs that have dependents."""

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

import pytest

from app.broker import Broker, build_broker
from app.db.lanes import lane_of
from app.events import JobsPurged
from app.jobs.purge import BATCH_SIZE
from app.queues.schemas import PurgeQueue, QueuePurged
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database

QUEUE = "mail"
LANES = [256, 257]  # the lanes of the first queue
JOBS = """
INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload, has_dependents)
SELECT $1, new.id, 'ready', now(), 0, 5, 'test', '{}', $3
FROM unnest($2::uuid[]) AS new (id)
"""


@pytest.fixture
def database_without_broker(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database without a broker, so that no service changes its rows."""
    database = TestDatabase(create_database(postgres, loop, "purging"), loop)
    database.empty()
    database.execute("DELETE FROM finished_parents")
    database.execute("INSERT INTO queues (id, name, lanes) VALUES (1, $1, 2) ON CONFLICT DO NOTHING", QUEUE)
    yield database
    database.close()


@pytest.fixture
def services(database_without_broker: TestDatabase, loop: Loop) -> Iterator[Broker]:
    broker_services = build_broker(TEST_SETTINGS, database_without_broker.dsn)
    loop.run(broker_services.infra.db.open())
    loop.run(broker_services.infra.clock.refresh(broker_services.infra.db))
    yield broker_services
    loop.run(broker_services.infra.db.close())


def add(
    broker_services: Broker, db: TestDatabase, lane: int, count: int, *, has_dependents: bool | None = None
) -> list[str]:
    ids = [str(broker_services.infra.job_ids.generate(lane, broker_services.infra.now())) for _ in range(count)]
    db.execute(JOBS, lane, ids, has_dependents)
    return ids


def purge(broker_services: Broker, loop: Loop) -> tuple[QueuePurged, list[int]]:
    """The response, and the lanes of the events, one for each batch."""
    lanes: list[int] = []
    broker_services.events.subscribe(JobsPurged, lambda event: lanes.append(event.lane))
    return loop.run(broker_services.purger.purge(QUEUE, PurgeQueue(dry_run=False), "test")), lanes


def test_purge_removes_jobs_in_batches_and_rescans_the_lane_after_each(
    services: Broker, database_without_broker: TestDatabase, loop: Loop
) -> None:
    counts = {LANES[0]: 2 * BATCH_SIZE + 500, LANES[1]: BATCH_SIZE}
    for lane, count in counts.items():
        add(services, database_without_broker, lane, count)
    answer, lanes = purge(services, loop)
    assert answer == QueuePurged(matched=sum(counts.values()), purged=sum(counts.values()))
    assert database_without_broker.value("SELECT count(*) FROM jobs") == 0
    deltas = database_without_broker.rows("SELECT lane, ready FROM stat_deltas")
    assert Counter(lanes) == Counter(row["lane"] for row in deltas)
    assert {lane: -sum(row["ready"] for row in deltas if row["lane"] == lane) for lane in counts} == counts
    assert max(-row["ready"] for row in deltas) == BATCH_SIZE


def test_purged_job_with_dependents_is_recorded_as_finished_parent(
    services: Broker, database_without_broker: TestDatabase, loop: Loop
) -> None:
    for lane in LANES:
        add(services, database_without_broker, lane, 3)
    has_dependents = [
        job_id for lane in LANES for job_id in add(services, database_without_broker, lane, 2, has_dependents=True)
    ]
    answer, _ = purge(services, loop)
    assert answer.purged == 10
    finished_parents = database_without_broker.rows("SELECT lane, id, state FROM finished_parents ORDER BY lane, id")
    assert [(row["lane"], str(row["id"]), row["state"]) for row in finished_parents] == [
        (lane_of(UUID(id_)), id_, "purged") for id_ in has_dependents
    ]


def test_purge_keeps_an_earlier_record_of_a_finished_parent(
    services: Broker, database_without_broker: TestDatabase, loop: Loop
) -> None:
    """A job that died and was replayed may be purged before its children are resolved."""
    (job_id,) = add(services, database_without_broker, LANES[0], 1, has_dependents=True)
    database_without_broker.execute(
        "INSERT INTO finished_parents (lane, id, state) VALUES ($1, $2, 'dead')", LANES[0], job_id
    )
    assert purge(services, loop)[0].purged == 1
    assert [row["state"] for row in database_without_broker.rows("SELECT state FROM finished_parents")] == ["dead"]
