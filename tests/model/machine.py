"""The state machine: any order of steps, on either of two brokers, some of them two at a time."""

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
from tests.model.brokers import Table
from tests.model.clock import TICK
from tests.model.protocol import Protocol
from tests.model.steps import (
    Beat,
    Cancel,
    Claim,
    ClaimUnheard,
    Enqueue,
    Expire,
    Promote,
    Replay,
    Settle,
    Step,
    Ticket,
    Word,
)

NUMBERS = st.integers(0, 30)
WORKERS = st.sampled_from(["ada", "bob"])
KEYS = st.sampled_from([None, None, "a", "b"])
LEASES = st.sampled_from([1, 10, 60])
OUTCOMES = st.sampled_from([*Outcome])
DELAYS = st.sampled_from([None, None, 0, 5, 100])
TICKETS = st.sampled_from(["held", "held", "overtaken", "any"])
WORDS = st.tuples(NUMBERS, TICKETS, OUTCOMES, DELAYS, st.sampled_from([True, True, False]))
RIVALS = st.sampled_from(["complete", "fail", "release", "beat", "expire", "cancel", "claim"])
_queues = (f"model-{number}" for number in itertools.count(1))


class Leases(RuleBasedStateMachine):
    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table
        self.group_scheduler = itertools.cycle(table.brokers)
        table.database.empty()
        self.queue = next(_queues)
        self.model = Protocol(table.clock.now())
        self.produce([(0, 3, 0)] * 3)

    # How steps are run

    def do(self, step: Step) -> None:
        self.tick()
        told = self.table.loop.run(step.call(next(self.group_scheduler)))
        note(f"{step} -> {told}")
        assert told == step.foretell(self.model, told)

    def race(self, one: Step, two: Step) -> None:
        """At once, on two brokers. What they tell and leave behind is what they would in one order or the other."""
        self.tick()
        told = self.table.loop.run(self._both(one, two))
        note(f"{one} against {two} -> {told}")
        rows = self.table.rows()
        orders = [((one, told[0]), (two, told[1])), ((two, told[1]), (one, told[0]))]
        fitting = [model for order in orders if (model := self._in_turn(order)) and model.rows() == rows]
        assert fitting, "neither order explains it"
        self.model = fitting[0]

    async def _both(self, one: Step, two: Step) -> tuple[object, object]:
        return await asyncio.gather(one.call(next(self.group_scheduler)), two.call(next(self.group_scheduler)))

    def _in_turn(self, order: tuple[tuple[Step, object], ...]) -> Protocol | None:
        model = self.model.copy()
        return model if all(told == step.foretell(model, told) for step, told in order) else None

    def tick(self, by: timedelta = TICK) -> None:
        self.table.clock.advance(by)
        self.model.now = self.table.clock.now()

    def ticket(self, number: int, kind: str = "held") -> Ticket:
        """A lease that somebody has, one that was overtaken (the job is in other hands by now), or any that somebody has had."""
        tickets = self.overtaken() if kind == "overtaken" else self.model.tickets if kind == "any" else []
        tickets = tickets or self.held()
        return tickets[-1 - number % len(tickets)]

    def overtaken(self) -> list[Ticket]:
        if not any(job.deliveries > 1 for job in self.model.those("running")):
            self.crash(0, 1)
            self.do(Claim(self.queue, 3, 60, "bob"))
        tokens = {job.id: job.token for job in self.model.those("running")}
        return [(job_id, token) for job_id, token in self.model.tickets if tokens.get(job_id, token) != token]

    def held(self, *workers: str) -> list[Ticket]:
        """By these workers, or by any; somebody takes one if nobody has any."""
        running = [job for job in self.model.those("running") if job.token]
        if not running and not workers:
            self.produce([(0, 3, 0)])
            self.do(Claim(self.queue, 2, 60, "ada"))
            running = self.model.those("running")
        return [(job.id, job.token) for job in running if job.token and (job.worker in workers or not workers)]

    def job(self, number: int, *states: str) -> UUID:
        jobs = self.model.those(*states) or list(self.model.jobs.values())
        return jobs[number % len(jobs)].id

    # Producers

    @rule(
        jobs=st.lists(
            st.tuples(st.integers(-1, 1), st.integers(1, 4), st.sampled_from([0, 0, 0, 5, 100])), min_size=1, max_size=3
        )
    )
    def produce(self, jobs: list[tuple[int, int, int]]) -> None:
        for priority, max_attempts, delay in jobs:
            self.do(Enqueue(self.queue, priority, max_attempts, delay))

    @rule(key=st.sampled_from(["a", "b"]), at_once=st.booleans())
    def produce_with_a_key(self, key: str, at_once: bool) -> None:
        step = Enqueue(self.queue, 0, 3, 0, key)
        self.race(step, step) if at_once else self.do(step)

    # Workers

    @rule(worker=WORKERS, most=st.integers(1, 3), seconds=LEASES, key=KEYS, cut=st.booleans())
    def claim(self, worker: str, most: int, seconds: int, key: str | None, cut: bool) -> None:
        self.do(Claim(self.queue, most, seconds, worker, key, cut=cut and key is not None))

    @rule(worker=WORKERS, most=st.integers(1, 3))
    def claim_and_leave(self, worker: str, most: int) -> None:
        self.do(ClaimUnheard(self.queue, most, worker))

    @rule(words=st.lists(WORDS, min_size=1, max_size=3))
    def settle(self, words: list[tuple[int, str, Outcome, int | None, bool]]) -> None:
        self.do(Settle(tuple(self.word(*word) for word in words)))

    def word(self, number: int, kind: str, outcome: Outcome, delay: int | None, retryable: bool) -> Word:
        return Word(self.ticket(number, kind), outcome, delay, retryable)

    @rule(number=NUMBERS, outcome=OUTCOMES, times=st.integers(1, 2))
    def settle_late(self, number: int, outcome: Outcome, times: int) -> None:
        """When the lease has been taken back."""
        step = Settle((Word(self.ticket(number), outcome),))
        self.crash(number, 1)
        for _ in range(times):
            self.do(step)

    @rule(word=WORDS, times=st.integers(2, 3))
    def settle_again_and_again(self, word: tuple[int, str, Outcome, int | None, bool], times: int) -> None:
        step = Settle((self.word(*word),))
        for _ in range(times):
            self.do(step)

    @rule(
        worker=WORKERS,
        numbers=st.lists(st.tuples(NUMBERS, TICKETS), max_size=3),
        seconds=st.sampled_from([None, None, 1, 100]),
    )
    def extend(self, worker: str, numbers: list[tuple[int, str]], seconds: int | None) -> None:
        tickets = dict.fromkeys(self.ticket(number, kind) for number, kind in numbers)
        self.do(Beat(worker, tuple(tickets), seconds, holds_all=False))

    @rule(worker=WORKERS, listed=st.integers(0, 7), times=st.integers(1, 2))
    def list_what_is_held(self, worker: str, listed: int, times: int) -> None:
        """All that the worker has, but for what it has not heard of."""
        tickets = tuple(ticket for place, ticket in enumerate(self.held(worker)) if listed >> place % 3 & 1)
        for _ in range(times):
            self.do(Beat(worker, tickets, None, holds_all=True))

    # Time, and what happens with no request

    @rule(seconds=st.sampled_from([1, 1, 3, 11, 61, 500]), swept=st.booleans())
    def time_passes(self, seconds: int, swept: bool) -> None:
        self.tick(timedelta(seconds=seconds))
        if swept:
            self.do(Expire())
            self.do(Promote())

    @rule(number=NUMBERS, times=st.integers(1, 3))
    def crash(self, number: int, times: int) -> None:
        """Whoever has the job falls silent, and so does the next."""
        for _ in range(times):
            job = self.model.jobs[self.ticket(number)[0]]
            if job.until is not None:
                self.tick(max(TICK, job.until - self.model.now))
                self.do(Expire())

    @rule()
    def sweep(self) -> None:
        self.do(Expire())

    @rule()
    def promote(self) -> None:
        self.do(Promote())

    # Operators

    @rule(number=NUMBERS, state=st.sampled_from(["running", "ready", "scheduled", "completed"]))
    def cancel(self, number: int, state: str) -> None:
        self.do(Cancel(self.job(number, state)))

    @rule(number=NUMBERS, at_once=st.booleans())
    def replay(self, number: int, at_once: bool) -> None:
        step = Replay(self.job(number, "dead"))
        self.race(step, step) if at_once else self.do(step)

    # Two at once

    @rule(number=NUMBERS, kind=TICKETS, one=RIVALS, two=RIVALS, late=st.booleans())
    def contend(self, number: int, kind: str, one: str, two: str, late: bool) -> None:
        """For one job, in two ways; late: when its lease is over."""
        ticket = self.ticket(number, kind)
        if late:
            self.tick(timedelta(seconds=61))
        if (one, two) != ("cancel", "cancel"):  # the second of two at one instant is told what the first is
            self.race(self.rival(one, ticket), self.rival(two, ticket))

    def rival(self, way: str, ticket: Ticket) -> Step:
        if way in ("complete", "fail", "release"):
            return Settle((Word(ticket, Outcome(way)),))
        others: dict[str, Step] = {
            "beat": Beat("ada", (ticket,), None, holds_all=False),
            "expire": Expire(),
            "cancel": Cancel(ticket[0]),
            "claim": Claim(self.queue, 1, 10, "bob"),
        }
        return others[way]

    @rule(key=st.sampled_from(["a", "b"]), most=st.integers(1, 3), seconds=LEASES)
    def claim_twice_at_once(self, key: str, most: int, seconds: int) -> None:
        step = Claim(self.queue, most, seconds, "ada", key)
        self.race(step, step)

    # Always, and at the end

    @invariant()
    def every_job_is_where_it_should_be(self) -> None:
        assert self.table.rows() == self.model.rows()

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # it is broken already
        assert self.table.counts(self.queue) == Counter(job.state for job in self.model.jobs.values())
