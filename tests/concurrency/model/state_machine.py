"""The state machine: steps in any order, on either of two brokers, some of them two at a time."""

import asyncio
import itertools
import sys
from collections import Counter
from datetime import timedelta
from uuid import UUID

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.leases.schemas import Outcome
from tests.concurrency.model.brokers import BrokerPair
from tests.concurrency.model.clock import TICK
from tests.concurrency.model.lease_model import LeaseModel
from tests.concurrency.model.steps import (
    Cancel,
    Claim,
    ClaimAndDisconnect,
    Enqueue,
    ExpireLeases,
    Lease,
    MakeDueJobsReady,
    Replay,
    SendHeartbeat,
    Settle,
    SettleItem,
    Step,
)
from tests.coverage import UNCOVERED_JOBS

NUMBERS = st.integers(0, 30)
WORKERS = st.sampled_from(["ada", "bob"])
KEYS = st.sampled_from([None, None, "a", "b"])
LEASE_SECONDS = st.sampled_from([1, 10, 60])
OUTCOMES = st.sampled_from([*Outcome])
DELAYS = st.sampled_from([None, None, 0, 5, 100])
LEASE_KINDS = st.sampled_from(["held", "held", "stale", "any"])
SETTLEMENTS = st.tuples(NUMBERS, LEASE_KINDS, OUTCOMES, DELAYS, st.sampled_from([True, True, False]))
RIVALS = st.sampled_from(["complete", "fail", "release", "heartbeat", "expire", "cancel", "claim"])
_queues = (f"model-{number}" for number in itertools.count(1))


class LeaseStateMachine(RuleBasedStateMachine):
    def __init__(self, brokers: BrokerPair) -> None:
        super().__init__()
        self.brokers = brokers
        self.next_broker = itertools.cycle(brokers.brokers)
        brokers.database.empty()
        self.queue = next(_queues)
        self.model = LeaseModel(brokers.clock.now())
        self.enqueue([(0, 3, 0)] * 3)

    # How steps run

    def run_step(self, step: Step) -> None:
        self.tick()
        actual = self.brokers.loop.run(step.call(next(self.next_broker)))
        note(f"{step} -> {actual}")
        assert actual == step.expected(self.model, actual)

    def race(self, first: Step, second: Step) -> None:
        """Runs two steps concurrently on two brokers.

        One order of the steps or the other must explain their results and the rows.
        """
        self.tick()
        actual = self.brokers.loop.run(self._run_both(first, second))
        note(f"{first} against {second} -> {actual}")
        rows = self.brokers.rows()
        orders = [((first, actual[0]), (second, actual[1])), ((second, actual[1]), (first, actual[0]))]
        matching = [model for order in orders if (model := self._run_in_order(order)) and model.rows() == rows]
        assert matching, "neither order explains the results"
        self.model = matching[0]

    async def _run_both(self, first: Step, second: Step) -> tuple[object, object]:
        return await asyncio.gather(first.call(next(self.next_broker)), second.call(next(self.next_broker)))

    def _run_in_order(self, order: tuple[tuple[Step, object], ...]) -> LeaseModel | None:
        model = self.model.copy()
        return model if all(actual == step.expected(model, actual) for step, actual in order) else None

    def tick(self, duration: timedelta = TICK) -> None:
        self.brokers.clock.advance(duration)
        self.model.now = self.brokers.clock.now()

    def lease(self, number: int, kind: str = "held") -> Lease:
        """Picks a lease.

        `held`, `stale` (its job has been delivered again) or `any` lease of the run.
        """
        leases = self.stale_leases() if kind == "stale" else self.model.leases if kind == "any" else []
        leases = leases or self.held_leases()
        return leases[-1 - number % len(leases)]

    def stale_leases(self) -> list[Lease]:
        if not any(job.deliveries > 1 for job in self.model.jobs_in("running")):
            self.crash(0, 1)
            self.run_step(Claim(self.queue, 3, 60, "bob"))
        tokens = {job.id: job.token for job in self.model.jobs_in("running")}
        return [(job_id, token) for job_id, token in self.model.leases if tokens.get(job_id, token) != token]

    def held_leases(self, *workers: str) -> list[Lease]:
        """The leases of these workers, or of any worker.

        In the latter case claims jobs if there is none.
        """
        running = [job for job in self.model.jobs_in("running") if job.token]
        if not running and not workers:
            self.enqueue([(0, 3, 0)])
            self.run_step(Claim(self.queue, 2, 60, "ada"))
            running = self.model.jobs_in("running")
        return [(job.id, job.token) for job in running if job.token and (job.worker in workers or not workers)]

    def job(self, number: int, *states: str) -> UUID:
        jobs = self.model.jobs_in(*states) or list(self.model.jobs.values())
        return jobs[number % len(jobs)].id

    # Producers

    @rule(
        jobs=st.lists(
            st.tuples(st.integers(-1, 1), st.integers(1, 4), st.sampled_from([0, 0, 0, 5, 100])), min_size=1, max_size=3
        )
    )
    def enqueue(self, jobs: list[tuple[int, int, int]]) -> None:
        for priority, max_attempts, delay in jobs:
            self.run_step(Enqueue(self.queue, priority, max_attempts, delay))

    @rule(key=st.sampled_from(["a", "b"]), is_race=st.booleans())
    def enqueue_with_a_key(self, key: str, is_race: bool) -> None:
        step = Enqueue(self.queue, 0, 3, 0, key)
        self.race(step, step) if is_race else self.run_step(step)

    # Workers

    @rule(worker=WORKERS, limit=st.integers(1, 3), seconds=LEASE_SECONDS, key=KEYS, disconnects=st.booleans())
    def claim(self, worker: str, limit: int, seconds: int, key: str | None, disconnects: bool) -> None:
        self.run_step(Claim(self.queue, limit, seconds, worker, key, disconnects=disconnects and key is not None))

    @rule(worker=WORKERS, limit=st.integers(1, 3))
    def claim_and_disconnect(self, worker: str, limit: int) -> None:
        self.run_step(ClaimAndDisconnect(self.queue, limit, worker))

    @rule(settlements=st.lists(SETTLEMENTS, min_size=1, max_size=3))
    def settle(self, settlements: list[tuple[int, str, Outcome, int | None, bool]]) -> None:
        self.run_step(Settle(tuple(self.settle_item(*settlement) for settlement in settlements)))

    def settle_item(self, number: int, kind: str, outcome: Outcome, delay: int | None, retryable: bool) -> SettleItem:
        return SettleItem(self.lease(number, kind), outcome, delay, retryable)

    @rule(number=NUMBERS, outcome=OUTCOMES, times=st.integers(1, 2))
    def settle_late(self, number: int, outcome: Outcome, times: int) -> None:
        """Settles after the lease has expired."""
        step = Settle((SettleItem(self.lease(number), outcome),))
        self.crash(number, 1)
        for _ in range(times):
            self.run_step(step)

    @rule(settlement=SETTLEMENTS, times=st.integers(2, 3))
    def settle_repeatedly(self, settlement: tuple[int, str, Outcome, int | None, bool], times: int) -> None:
        step = Settle((self.settle_item(*settlement),))
        for _ in range(times):
            self.run_step(step)

    @rule(
        worker=WORKERS,
        numbers=st.lists(st.tuples(NUMBERS, LEASE_KINDS), max_size=3),
        seconds=st.sampled_from([None, None, 1, 100]),
    )
    def extend(self, worker: str, numbers: list[tuple[int, str]], seconds: int | None) -> None:
        leases = dict.fromkeys(self.lease(number, kind) for number, kind in numbers)
        self.run_step(SendHeartbeat(worker, tuple(leases), seconds, holds_all=False))

    @rule(worker=WORKERS, listed=st.integers(0, 7), times=st.integers(1, 2))
    def list_held_leases(self, worker: str, listed: int, times: int) -> None:
        """Lists some of the leases of the worker, because claim responses may have been lost."""
        leases = tuple(lease for place, lease in enumerate(self.held_leases(worker)) if listed >> place % 3 & 1)
        for _ in range(times):
            self.run_step(SendHeartbeat(worker, leases, None, holds_all=True))

    # Time, and what happens without a request

    @rule(seconds=st.sampled_from([1, 1, 3, 11, 61, 500]), run_services=st.booleans())
    def clock_advances(self, seconds: int, run_services: bool) -> None:
        self.tick(timedelta(seconds=seconds))
        if run_services:
            self.run_step(ExpireLeases())
            self.run_step(MakeDueJobsReady())

    @rule(number=NUMBERS, times=st.integers(1, 3))
    def crash(self, number: int, times: int) -> None:
        """The worker that holds the job sends nothing until its lease expires.

        So does the next worker.
        """
        for _ in range(times):
            job = self.model.jobs[self.lease(number)[0]]
            if job.lease_expires_at is not None:
                self.tick(max(TICK, job.lease_expires_at - self.model.now))
                self.run_step(ExpireLeases())

    @rule()
    def expire_leases(self) -> None:
        self.run_step(ExpireLeases())

    @rule()
    def make_due_jobs_ready(self) -> None:
        self.run_step(MakeDueJobsReady())

    # Operators

    @rule(number=NUMBERS, state=st.sampled_from(["running", "ready", "scheduled", "completed"]))
    def cancel(self, number: int, state: str) -> None:
        self.run_step(Cancel(self.job(number, state)))

    @rule(number=NUMBERS, is_race=st.booleans())
    def replay(self, number: int, is_race: bool) -> None:
        step = Replay(self.job(number, "dead"))
        self.race(step, step) if is_race else self.run_step(step)

    # Two steps at a time

    @rule(number=NUMBERS, kind=LEASE_KINDS, first=RIVALS, second=RIVALS, is_late=st.booleans())
    def contend(self, number: int, kind: str, first: str, second: str, is_late: bool) -> None:
        """Two calls about one job. `is_late`: after its lease is over."""
        lease = self.lease(number, kind)
        if is_late:
            self.tick(timedelta(seconds=61))
        # Of two cancels at the same instant, both get the status of the first.
        if (first, second) != ("cancel", "cancel"):
            self.race(self.rival(first, lease), self.rival(second, lease))

    def rival(self, name: str, lease: Lease) -> Step:
        if name in ("complete", "fail", "release"):
            return Settle((SettleItem(lease, Outcome(name)),))
        others: dict[str, Step] = {
            "heartbeat": SendHeartbeat("ada", (lease,), None, holds_all=False),
            "expire": ExpireLeases(),
            "cancel": Cancel(lease[0]),
            "claim": Claim(self.queue, 1, 10, "bob"),
        }
        return others[name]

    @rule(key=st.sampled_from(["a", "b"]), limit=st.integers(1, 3), seconds=LEASE_SECONDS)
    def claim_twice_concurrently(self, key: str, limit: int, seconds: int) -> None:
        step = Claim(self.queue, limit, seconds, "ada", key)
        self.race(step, step)

    # After every step, and at the end

    @invariant()
    def rows_match_the_model(self) -> None:
        assert self.brokers.rows() == self.model.rows()

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # the run has failed already
        assert self.brokers.counts(self.queue) == Counter(job.state for job in self.model.jobs.values())
        assert self.brokers.database.rows(UNCOVERED_JOBS) == []
