"""Floors are a hint. Claims do not read past what was taken before; yet what comes to lie below a floor is found, and what this process
has put there goes first again."""

import random
from collections.abc import Callable, Iterable
from uuid import UUID

import pytest

from app.broker import Broker
from app.db.pool import Executor
from app.leases.low_water_marks import MAX_PRIORITIES, LowWaterMarks
from app.leases.store import ENVELOPE_BYTES, LanePolicy, PollSlice
from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase
from tests.leases.conftest import ClaimStatements
from tests.limits.test_cost import ASKED, Watched
from tests.polls import Background

LANE, OTHER_LANE = 900 * 256, 901 * 256
CHURNED = 3_000
READY = """
INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
SELECT $1, id, 'ready', now(), $3, 5, 'test', '{}'
FROM unnest($2::uuid[]) AS id
"""
TAKEN = "UPDATE jobs SET state = 'running', lease_expires_at = now() + interval '1 minute' WHERE lane = $1 AND state = 'ready'"
PUT_BACK = "UPDATE jobs SET state = 'ready', lease_expires_at = NULL WHERE lane = $1 AND id = $2"
NOT_ENDING = "INSERT INTO keys (lane, digest, expires_at) VALUES (0, gen_random_uuid(), now())"


class Process:
    """One that claims, and hears nothing of what others do."""

    def __init__(self, broker_services: Broker, loop: Loop) -> None:
        self._broker_services = broker_services
        self._loop = loop
        self.floors = LowWaterMarks(broker_services.infra.db, dear=-1)  # so that they are always used

    def claim(self, most: int, *, lane: int = LANE, on: Executor | None = None) -> list[int]:
        rows = self.floors.claim(
            on or self._broker_services.infra.db, lane, most, ASKED, LanePolicy(), self._broker_services.infra.now()
        )
        return [row.id.int for row in self._loop.run(rows)]

    def pages(self, most: int, lane: int = LANE) -> int:
        """That a claim touches."""
        watched = Watched(self._broker_services.infra.db)
        self.claim(most, lane=lane, on=watched)
        assert watched.answered == most
        return watched.pages

    def look(self) -> None:
        """Without the rest after the last look, which is long on a busy machine."""
        self.floors._rests_until = 0.0
        self._loop.run(self.floors.run_once())


@pytest.fixture
def process(broker_services: Broker, loop: Loop) -> Process:
    return Process(broker_services, loop)


def add(db: TestDatabase, numbers: Iterable[int], *, lane: int = LANE, priority: int = 0) -> None:
    """Jobs of these ids, from somebody else."""
    db.execute(READY, lane, [UUID(int=number) for number in numbers], priority)


def churn(db: TestDatabase) -> None:
    add(db, range(1, CHURNED + 1))
    db.execute(TAKEN, LANE)
    db.execute("DELETE FROM jobs WHERE lane = $1", LANE)


def test_a_claim_does_not_read_past_what_was_taken_before(
    process: Process, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    with db.uncommitted(NOT_ENDING):  # so that nothing that dies from here on can be cleaned up
        churn(db)
        for lane in (LANE, OTHER_LANE):
            add(db, range(CHURNED + 1, CHURNED + 101), lane=lane)
            process.claim(10, lane=lane)
        assert process.pages(10) <= 1.5 * process.pages(10, OTHER_LANE)
        assert process.pages(1) <= 2 * process.pages(1, OTHER_LANE)
        assert Process(broker_services, loop).pages(1) > 3 * process.pages(1, OTHER_LANE), (
            "the control: so dear it would be without a floor"
        )


def test_after_a_look_claims_of_some_types_do_not_either(
    process: Process, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    some = ASKED._replace(job_types=["test"])
    with db.uncommitted(NOT_ENDING):
        churn(db)
        add(db, range(CHURNED + 1, CHURNED + 101))
        loop.run(
            process.floors.claim(broker_services.infra.db, LANE, 10, some, LanePolicy(), broker_services.infra.now())
        )
        before = process.pages(10)
        process.look()
        assert process.pages(10) < before / 3


@pytest.mark.parametrize("seed", range(3))
def test_whoever_gets_less_than_he_asked_for_has_got_everything(
    broker_services: Broker, loop: Loop, db: TestDatabase, seed: int
) -> None:
    """Three processes enqueue in any order, put back what others took, and tell each other nothing."""
    rng, numbers = random.Random(seed), list(range(1, 401))
    rng.shuffle(numbers)
    processes, held = [Process(broker_services, loop) for _ in range(3)], set[int]()
    for _ in range(200):
        add(db, [numbers.pop() for _ in range(min(rng.randrange(4), len(numbers)))], priority=rng.randrange(-1, 2))
        most = rng.randrange(1, 6)
        got = rng.choice(processes).claim(most)
        assert held.isdisjoint(got)
        held.update(got)
        assert len(got) == most or db.value("SELECT count(*) FROM jobs WHERE lane = $1 AND state = 'ready'", LANE) == 0
        if held and rng.random() < 0.4:
            back = held.pop()
            db.execute(PUT_BACK, LANE, UUID(int=back))
        if rng.random() < 0.1:
            rng.choice(processes).look()


def test_an_older_job_of_another_process_goes_first_after_a_look(process: Process, db: TestDatabase) -> None:
    add(db, range(10, 30))
    assert process.claim(5) == [10, 11, 12, 13, 14]
    add(db, [3])
    process.look()
    assert process.claim(2) == [3, 15]


def test_what_did_not_fit_into_the_answer_of_one_of_many_goes_first_afterwards(
    process: Process, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    add(db, range(1, 8))
    full = ASKED._replace(shares=[PollSlice(3, None, None)] * 2, max_bytes=2 * ENVELOPE_BYTES + 100)
    rows = loop.run(
        process.floors.claim(broker_services.infra.db, LANE, 6, full, LanePolicy(), broker_services.infra.now())
    )
    assert [row.id.int for row in rows] == [1, 2, 4, 5]
    assert process.claim(3) == [3, 6, 7]


def test_what_a_rolled_back_transaction_held_is_found(process: Process, db: TestDatabase) -> None:
    add(db, range(1, 5))
    with db.uncommitted("SELECT FROM jobs WHERE lane = $1 AND id = $2 FOR UPDATE", LANE, UUID(int=1)):
        assert process.claim(2) == [2, 3]
    assert process.claim(2) == [1, 4]


def test_more_priorities_than_there_are_floors_are_claimed_in_order(process: Process, db: TestDatabase) -> None:
    priorities = range(-MAX_PRIORITIES, MAX_PRIORITIES)
    for priority in priorities:
        add(db, [1000 - priority, 2000 - priority], priority=priority)
    expected = [first - priority for priority in reversed(priorities) for first in (1000, 2000)]
    assert [number for _ in priorities for number in process.claim(2)] == expected


def test_floors_are_used_where_the_way_to_the_first_job_is_long_and_only_there(
    broker_services: Broker, loop: Loop, db: TestDatabase
) -> None:
    process = Process(broker_services, loop)
    process.floors = LowWaterMarks(broker_services.infra.db, dear=50)
    add(db, range(10, 40))
    assert process.claim(2) == [10, 11]
    process.look()
    add(db, [3])
    assert process.claim(2) == [3, 12], "the order is exact, though nobody has told"
    with db.uncommitted(NOT_ENDING):
        add(db, range(1000, 1000 + CHURNED))
        db.execute(
            "UPDATE jobs SET state = 'running' WHERE lane = $1 AND state = 'ready' AND id >= $2", LANE, UUID(int=1000)
        )
        db.execute(
            "UPDATE jobs SET state = 'running' WHERE lane = $1 AND state = 'ready' AND id < $2", LANE, UUID(int=1000)
        )
        add(db, range(5000, 5010))
        dear = process.pages(1)
        process.look()
        assert process.pages(1) < dear


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
def test_what_becomes_ready_here_goes_first_again(api: Api, way: Callable[[Api], Json]) -> None:
    job = way(api)
    wait_until(lambda: api.job(job["id"])["state"] == "ready")
    assert api.claim_one()["id"] == job["id"]


def test_what_becomes_ready_while_a_claim_is_on_its_way_is_not_passed_over(
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


def test_what_others_take_while_a_claim_is_on_its_way_is_not_taken_again(
    quiet: Api, quiet_db: TestDatabase, claim_statements: ClaimStatements, background: Background
) -> None:
    """The row is locked, read again and found to be none of its zone's any more."""
    _, _, first, second = quiet.enqueue_many(4)
    quiet.claim(max_jobs=2)
    with claim_statements.held():
        claim = background.claim(quiet)
        wait_until(claim_statements.running)
        quiet_db.execute(
            "UPDATE jobs SET state = 'running', lease_expires_at = now() + interval '1 hour' WHERE id = $1", first
        )
    assert [job["id"] for job in claim.result()["jobs"]] == [second]


def test_a_claim_of_some_types_hides_no_other(api: Api) -> None:
    ids = {kind: api.enqueue(job_type=kind)["id"] for kind in ("a", "b", "c")}
    assert api.claim_one(job_types=["b"])["id"] == ids["b"]
    assert [api.claim_one()["id"] for _ in range(2)] == [ids["a"], ids["c"]]
