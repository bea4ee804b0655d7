"""Low-water marks are a hint.

Claims do not read past dead index entries of jobs that were claimed before. Yet a job that ends up
below a mark is found, and a job that this process has put there goes first again.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

import pytest

from app.broker import Broker
from app.db.pool import Executor
from app.errors import DatabaseUnavailable
from app.events import EventBus, JobsMoved
from app.leases.low_water_marks import MAX_PRIORITIES, LowWaterMarks
from app.leases.retry_decision import LeaseEnd
from app.leases.rows import LanePolicy, PollSlice, RetryDecision, SettledRow
from app.leases.store import ENVELOPE_BYTES
from tests.api.concurrency.test_cost import PageCounter, claim_params
from tests.api.leases.conftest import ClaimStatements
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.polls import Background

LANE, OTHER_LANE = 900 * 256, 901 * 256
DEAD = 3_000
INSERT_READY = """
WITH added AS (
    INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
    SELECT $1, id, 'ready', now(), $3, 5, 'test', '{}'
    FROM unnest($2::uuid[]) AS id
)
INSERT INTO ready_spans SELECT $1, $3, id, id FROM unnest($2::uuid[]) AS id
"""
REQUEUE = """
WITH requeued AS (
    UPDATE jobs SET state = 'ready', lease_expires_at = NULL WHERE lane = $1 AND id = $2 RETURNING lane, priority, id
)
INSERT INTO ready_spans SELECT lane, priority, id, id FROM requeued
"""
OPEN_TRANSACTION = "INSERT INTO deduplication_keys (lane, digest, expires_at) VALUES (0, gen_random_uuid(), now())"


class Process:
    """A process that claims and gets no events from other processes."""

    def __init__(self, broker_services: Broker, loop: Loop) -> None:
        self._broker_services = broker_services
        self._loop = loop
        self.low_water_marks = LowWaterMarks(
            db=broker_services.infra.db, events=EventBus(), expensive_buffers=-1
        )  # so that marks are always used

    def claim(self, limit: int, *, lane: int = LANE, db: Executor | None = None) -> list[int]:
        rows = self.low_water_marks.claim_with_marks(
            db or self._broker_services.infra.db,
            lane,
            limit,
            claim_params(),
            LanePolicy(),
            self._broker_services.infra.now(),
        )
        return [row.id.int for row in self._loop.run(rows)]

    def buffers(self, limit: int, lane: int = LANE) -> int:
        """The number of buffers that a claim reads. The first claim with marks also plans the
        statements of the function `claim_jobs`, for which it reads the catalogue."""
        watched = PageCounter(self._broker_services.infra.db)
        self.claim(limit, lane=lane, db=watched)
        assert watched.row_count == limit
        return watched.pages

    def scan(self) -> None:
        """Scans without the pause after the last scan, which is long on a busy machine."""
        self.low_water_marks._pause_until = 0.0
        self._loop.run(self.low_water_marks.run_once())


@pytest.fixture
def process(broker_services: Broker, loop: Loop) -> Process:
    return Process(broker_services, loop)


def add(db: TestDatabase, numbers: Iterable[int], *, lane: int = LANE, priority: int = 0) -> None:
    """Inserts jobs with these ids from outside the process."""
    db.execute(INSERT_READY, lane, [UUID(int=number) for number in numbers], priority)


def make_dead_index_entries(db: TestDatabase) -> None:
    add(db, range(1, DEAD + 1))
    db.execute("DELETE FROM ready_spans WHERE lane = $1", LANE)
    db.execute("DELETE FROM jobs WHERE lane = $1", LANE)


def test_claim_does_not_read_dead_index_entries_below_the_mark(
    process: Process, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    # The open transaction keeps vacuum from removing tuples that die from here on.
    with db.uncommitted(OPEN_TRANSACTION):
        make_dead_index_entries(db)
        for lane in (LANE, OTHER_LANE):
            add(db, range(DEAD + 1, DEAD + 101), lane=lane)
            for _ in range(2):
                process.claim(10, lane=lane)
        assert process.buffers(10) <= 1.5 * process.buffers(10, OTHER_LANE)
        assert process.buffers(1) <= 2 * process.buffers(1, OTHER_LANE)
        assert Process(broker_services, loop).buffers(1) > 2 * process.buffers(1, OTHER_LANE), (
            "control: the cost without a mark"
        )


def test_claim_of_some_job_types_does_not_read_dead_index_entries_after_a_scan(
    process: Process, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    one_type = claim_params()._replace(job_types=["test"])
    with db.uncommitted(OPEN_TRANSACTION):
        make_dead_index_entries(db)
        add(db, range(DEAD + 1, DEAD + 101))
        loop.run(
            process.low_water_marks.claim_with_marks(
                broker_services.infra.db, LANE, 10, one_type, LanePolicy(), broker_services.infra.now()
            )
        )
        before = process.buffers(10)
        process.scan()
        process.claim(10)
        assert process.buffers(10) < before / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_claim_with_fewer_jobs_than_requested_has_claimed_all_ready_jobs(
    broker_services: Broker, loop: Loop, db: TestDatabase, seed: int
) -> None:
    """Three processes enqueue in any order and requeue jobs that others claimed, without events."""
    rng, numbers = random.Random(seed), list(range(1, 401))
    rng.shuffle(numbers)
    processes, held = [Process(broker_services, loop) for _ in range(3)], set[int]()
    for _ in range(200):
        add(db, [numbers.pop() for _ in range(min(rng.randrange(4), len(numbers)))], priority=rng.randrange(-1, 2))
        limit = rng.randrange(1, 6)
        claimed = rng.choice(processes).claim(limit)
        assert held.isdisjoint(claimed)
        held.update(claimed)
        assert (
            len(claimed) == limit
            or db.value("SELECT count(*) FROM jobs WHERE lane = $1 AND state = 'ready'", LANE) == 0
        )
        if held and rng.random() < 0.4:
            requeued = held.pop()
            db.execute(REQUEUE, LANE, UUID(int=requeued))
        if rng.random() < 0.1:
            rng.choice(processes).scan()


def test_older_job_of_another_process_goes_first_after_a_scan(process: Process, db: TestDatabase) -> None:
    add(db, range(10, 30))
    assert process.claim(5) == [10, 11, 12, 13, 14]
    add(db, [3])
    process.scan()
    assert process.claim(2) == [3, 15]


def test_job_that_did_not_fit_into_a_shared_claim_goes_first_afterwards(
    process: Process, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    add(db, range(1, 8))
    full = claim_params()._replace(poll_slices=[PollSlice(3, None, None)] * 2, max_bytes=2 * ENVELOPE_BYTES + 100)
    rows = loop.run(
        process.low_water_marks.claim_with_marks(
            broker_services.infra.db, LANE, 6, full, LanePolicy(), broker_services.infra.now()
        )
    )
    assert [row.id.int for row in rows] == [1, 2, 4, 5]
    assert process.claim(3) == [3, 6, 7]


def test_job_locked_by_a_transaction_that_rolled_back_is_found(process: Process, db: TestDatabase) -> None:
    add(db, range(1, 5))
    with db.uncommitted("SELECT FROM jobs WHERE lane = $1 AND id = $2 FOR UPDATE", LANE, UUID(int=1)):
        assert process.claim(2) == [2, 3]
    assert process.claim(2) == [1, 4]


def test_more_priorities_than_marks_are_claimed_in_order(process: Process, db: TestDatabase) -> None:
    priorities = range(-MAX_PRIORITIES, MAX_PRIORITIES)
    for priority in priorities:
        add(db, [1000 - priority, 2000 - priority], priority=priority)
    expected = [first - priority for priority in reversed(priorities) for first in (1000, 2000)]
    assert [number for _ in priorities for number in process.claim(2)] == expected


def test_marks_are_used_only_where_the_first_job_is_expensive_to_reach(
    broker_services: Broker, loop: Loop, db: TestDatabase
) -> None:
    process = Process(broker_services, loop)
    process.low_water_marks = LowWaterMarks(db=broker_services.infra.db, events=EventBus(), expensive_buffers=50)
    add(db, range(10, 40))
    assert process.claim(2) == [10, 11]
    process.scan()
    add(db, [3])
    assert process.claim(2) == [3, 12], "the order is exact without an event"
    with db.uncommitted(OPEN_TRANSACTION):
        add(db, range(1000, 1000 + DEAD))
        db.execute("UPDATE jobs SET state = 'running' WHERE lane = $1", LANE)
        db.execute("DELETE FROM ready_spans WHERE lane = $1", LANE)
        add(db, range(5000, 5010))
        before = process.buffers(1)
        process.scan()
        process.claim(1)
        assert process.buffers(1) < before


def released(api: Api) -> Json:
    job = api.enqueue()
    api.enqueue_many(3)
    api.release(api.claim_one())
    return job


def retried(api: Api) -> Json:
    job = api.enqueue()
    api.enqueue_many(3)
    api.fail(api.claim_one(), retry_after_seconds=0)
    return job


def replayed(api: Api) -> Json:
    job = api.enqueue()
    api.enqueue_many(3)
    api.fail(api.claim_one(), retryable=False)
    return api.replay(job)


def run_now(api: Api) -> Json:
    job = api.enqueue(delay_seconds=3600)
    api.enqueue_many(4)
    api.claim_one()
    api.post(f"/jobs/{job['id']}/run-now")
    return job


def raised(api: Api) -> Json:
    job = api.enqueue(priority=-1)
    api.enqueue_many(4)
    api.claim_one()
    return api.change(job, priority=0)


@pytest.mark.parametrize("way", [released, retried, replayed, run_now, raised])
def test_job_made_ready_by_this_process_goes_first_again(api: Api, way: Callable[[Api], Json]) -> None:
    job = way(api)
    wait_until(lambda: api.job(job["id"])["state"] == "ready")
    assert api.claim_one()["id"] == job["id"]


def test_job_that_becomes_ready_during_a_claim_is_not_skipped(
    quiet: Api, claim_statements: ClaimStatements, background: Background
) -> None:
    first, second, third = quiet.enqueue_many(3)
    held = quiet.claim_one()
    with claim_statements.held():
        claim = background.claim(quiet)
        wait_until(claim_statements.running)
        quiet.release(held)
    assert [job["id"] for job in claim.result()["jobs"]] == [second]
    assert [quiet.claim_one()["id"] for _ in range(2)] == [first, third]


def test_job_claimed_by_another_session_during_a_claim_is_not_claimed_again(
    quiet: Api, quiet_db: TestDatabase, claim_statements: ClaimStatements, background: Background
) -> None:
    """The claim locks the row, reads it again and finds that it has left the scan range."""
    _, _, first, second = quiet.enqueue_many(4)
    quiet.claim(max_jobs=2)
    with claim_statements.held():
        claim = background.claim(quiet)
        wait_until(claim_statements.running)
        quiet_db.execute(
            "UPDATE jobs SET state = 'running', lease_expires_at = now() + interval '1 hour' WHERE id = $1", first
        )
    assert [job["id"] for job in claim.result()["jobs"]] == [second]


def test_claim_of_one_job_type_hides_no_jobs_of_other_types(api: Api) -> None:
    ids = {kind: api.enqueue(job_type=kind)["id"] for kind in ("a", "b", "c")}
    assert api.claim_one(job_types=["b"])["id"] == ids["b"]
    assert [api.claim_one()["id"] for _ in range(2)] == [ids["a"], ids["c"]]


def test_lane_is_scanned_again_after_a_scan_that_failed(
    process: Process, db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(db, range(10, 30))
    assert process.claim(2) == [10, 11]
    add(db, [3])

    async def fail(*_: object) -> None:
        raise DatabaseUnavailable("the connection was lost", "not_done")

    with monkeypatch.context() as broken:
        broken.setattr("app.leases.low_water_marks._buffers_to_first_ready", fail)
        with pytest.raises(DatabaseUnavailable):
            process.scan()
    process.scan()
    assert process.claim(2) == [3, 12]


def test_requeued_jobs_are_published_in_the_order_of_their_ids(
    broker_services: Broker, api: Api, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job changes between its decision and the update, so it is decided again."""
    api.enqueue_many(2)
    jobs = api.claim(max_jobs=2)["jobs"]
    loop.run(broker_services.queues.refresh())
    published: list[JobsMoved] = []
    broker_services.events.subscribe_moved(["ready"], published.append)
    lease_ender, skipped = broker_services.lease_ender, [1, 0]
    apply = lease_ender._apply

    async def apply_without_first(db: Executor, lane: int, decisions: Sequence[RetryDecision]) -> list[SettledRow]:
        return await apply(db, lane, decisions[skipped.pop(0) :])

    monkeypatch.setattr(lease_ender, "_apply", apply_without_first)
    loop.run(lease_ender.end([LeaseEnd(UUID(job["id"]), UUID(job["lease_token"]), "release") for job in jobs]))
    assert [str(job.id) for event in published for job in event.jobs] == [job["id"] for job in jobs]
