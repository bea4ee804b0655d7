"""How a purge goes about it: in batches, telling the lanes, and writing down what others wait for."""

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

import pytest

from app.broker import Broker, build_broker
from app.db.lanes import lane_of
from app.purging.purging import BATCH, QueuePurger
from app.queues.schemas import PurgeQueue, QueuePurged
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database

QUEUE = "mail"
LANES = [256, 257]  # of the first queue
JOBS = """
INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload, awaited)
SELECT $1, new.id, 'ready', now(), 0, 5, 'test', '{}', $3
FROM unnest($2::uuid[]) AS new (id)
"""


@pytest.fixture
def alone(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database that no broker works on: nobody takes away what is written there."""
    database = TestDatabase(create_database(postgres, loop, "purging"), loop)
    database.empty()
    database.execute("DELETE FROM endings")
    database.execute("INSERT INTO queues (id, name, lanes) VALUES (1, $1, 2) ON CONFLICT DO NOTHING", QUEUE)
    yield database
    database.close()


@pytest.fixture
def quiet(alone: TestDatabase, loop: Loop) -> Iterator[Broker]:
    broker_services = build_broker(QUICK, alone.dsn)
    loop.run(broker_services.infra.db.open())
    loop.run(broker_services.infra.clock.refresh(broker_services.infra.db))
    yield broker_services
    loop.run(broker_services.infra.db.close())


def add(broker_services: Broker, db: TestDatabase, lane: int, count: int, *, awaited: bool | None = None) -> list[str]:
    ids = [str(broker_services.infra.job_ids(lane)) for _ in range(count)]
    db.execute(JOBS, lane, ids, awaited)
    return ids


def purge(broker_services: Broker, loop: Loop) -> tuple[QueuePurged, list[int]]:
    """What it answers, and the lanes that were told, once per batch."""
    lanes: list[int] = []
    return loop.run(
        QueuePurger(broker_services.infra, broker_services.queues, broker_services.signals, lanes.append).purge(
            QUEUE, PurgeQueue(dry_run=False)
        )
    ), lanes


def test_many_jobs_go_in_batches_and_each_tells_its_lane(quiet: Broker, alone: TestDatabase, loop: Loop) -> None:
    counts = {LANES[0]: 2 * BATCH + 500, LANES[1]: BATCH}
    for lane, count in counts.items():
        add(quiet, alone, lane, count)
    answer, lanes = purge(quiet, loop)
    assert answer == QueuePurged(matched=sum(counts.values()), purged=sum(counts.values()))
    assert alone.value("SELECT count(*) FROM jobs") == 0
    deltas = alone.rows("SELECT lane, ready FROM stat_deltas")
    assert Counter(lanes) == Counter(row["lane"] for row in deltas)
    assert {lane: -sum(row["ready"] for row in deltas if row["lane"] == lane) for lane in counts} == counts
    assert max(-row["ready"] for row in deltas) == BATCH


def test_what_others_wait_for_is_written_down_as_purged(quiet: Broker, alone: TestDatabase, loop: Loop) -> None:
    for lane in LANES:
        add(quiet, alone, lane, 3)
    awaited = [job_id for lane in LANES for job_id in add(quiet, alone, lane, 2, awaited=True)]
    answer, _ = purge(quiet, loop)
    assert answer.purged == 10
    endings = alone.rows("SELECT lane, id, state FROM endings ORDER BY lane, id")
    assert [(row["lane"], str(row["id"]), row["state"]) for row in endings] == [
        (lane_of(UUID(id_)), id_, "purged") for id_ in awaited
    ]


def test_an_ending_that_was_written_before_stays(quiet: Broker, alone: TestDatabase, loop: Loop) -> None:
    """A job that died and was replayed may be purged before all who waited for it know of its death."""
    (job_id,) = add(quiet, alone, LANES[0], 1, awaited=True)
    alone.execute("INSERT INTO endings (lane, id, state) VALUES ($1, $2, 'dead')", LANES[0], job_id)
    assert purge(quiet, loop)[0].purged == 1
    assert [row["state"] for row in alone.rows("SELECT state FROM endings")] == ["dead"]
