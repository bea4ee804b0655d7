"""What can happen, as a call to a broker and as a word to the model. Both answers are plain values; whoever runs a step compares them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol as Typed
from uuid import UUID

from app.errors import NotFound, WrongState
from app.http.authorization import FULL_ACCESS
from app.http.schema_types import UNSET, value_or
from app.jobs.schemas import JobCreate
from app.leases.schemas import ClaimJobs, Heartbeat, HeldLease, Outcome, SentError, Settlement
from app.server.client import Client
from tests.model.brokers import Broker
from tests.model.protocol import DEFAULT_LEASE, Protocol, Told

Ticket = tuple[UUID, str]
_ERROR = SentError(message="it broke")


class Step(Typed):
    async def call(self, broker: Broker) -> object:
        """What the broker tells."""

    def foretell(self, model: Protocol, told: object) -> object:
        """What it has to tell; ids and tokens, which nobody can foretell, are learned from what was told."""


@dataclass(frozen=True)
class Enqueue:
    queue: str
    priority: int
    max_attempts: int
    delay: int
    key: str | None = None

    async def call(self, broker: Broker) -> object:
        job = JobCreate(
            job_type="model",
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            delay_seconds=self.delay,
        )
        told, _ = await broker.enqueuer.enqueue(job, {}, f"{self.queue} {self.key}" if self.key else None, FULL_ACCESS)
        return told.id, told.state, told.attempt, told.deliveries, told.run_at

    def foretell(self, model: Protocol, told: object) -> object:
        assert isinstance(told, tuple)
        job = model.jobs[model.keys[self.key]] if self.key in model.keys else None
        if job is None:
            assert told[0] not in model.jobs, "an id that was given out before"
            run_at = model.now + timedelta(seconds=self.delay)
            job = model.enqueue(told[0], priority=self.priority, max_attempts=self.max_attempts, run_at=run_at)
        if self.key:
            model.keys[self.key] = job.id
        return job.id, job.state, job.attempt, job.deliveries, job.run_at


@dataclass(frozen=True)
class Claim:
    """`cut`: the client has gone, but will repeat the call, as it has a key."""

    queue: str
    most: int
    seconds: int
    worker: str
    key: str | None = None
    cut: bool = False

    async def call(self, broker: Broker) -> object:
        client = Client()
        if self.cut:
            client.left()
        request = ClaimJobs(queues=[self.queue], max_jobs=self.most, lease_seconds=self.seconds, worker_id=self.worker)
        answer = await broker.long_poll.claim(
            request, f"{self.queue} {self.key}" if self.key else None, client, FULL_ACCESS
        )
        return [
            (job.id, str(job.lease_token), job.attempt, job.deliveries, job.lease_expires_at) for job in answer.jobs
        ]

    def foretell(self, model: Protocol, told: object) -> object:
        assert isinstance(told, list)
        tokens = {job_id: token for job_id, token, *_ in told}
        taken = model.claim(self.most, self.seconds, self.worker, self.key)
        return [(job.id, model.load(job, tokens.get(job.id)), job.attempt, job.deliveries, job.until) for job in taken]


class Leaving(Client):
    """There when its claim is sent, which is when it is looked for, and gone when it is answered."""

    def __init__(self) -> None:
        super().__init__()
        self._found = 1

    @property
    def gone(self) -> bool:
        self._found -= 1
        return self._found < 0

    def on_disconnect(self, _tell: Callable[[], None]) -> None:
        pass


@dataclass(frozen=True)
class ClaimUnheard:
    """By a client that leaves meanwhile: nobody hears the answer, and what was taken goes back."""

    queue: str
    most: int
    worker: str

    async def call(self, broker: Broker) -> object:
        client = Leaving()
        request = ClaimJobs(queues=[self.queue], max_jobs=self.most, worker_id=self.worker)
        return (await broker.long_poll.claim(request, None, client, FULL_ACCESS)).jobs

    def foretell(self, model: Protocol, told: object) -> object:
        for job in model.claim(self.most, DEFAULT_LEASE, self.worker, None):
            model.end(job, "undo")
        return []


@dataclass(frozen=True)
class Word:
    """One settlement."""

    ticket: Ticket
    outcome: Outcome
    delay: int | None = None
    retryable: bool = True

    def sent(self) -> Settlement:
        delay = UNSET if self.delay is None else self.delay
        return Settlement(
            job_id=self.ticket[0],
            lease_token=self.ticket[1],
            outcome=self.outcome,
            error=_ERROR if self.outcome is Outcome.FAIL else UNSET,
            retryable=self.retryable if self.outcome is Outcome.FAIL else UNSET,
            retry_after_seconds=delay if self.outcome is Outcome.FAIL else UNSET,
            delay_seconds=(self.delay or 0) if self.outcome is Outcome.SNOOZE else UNSET,
        )

    def foretell(self, model: Protocol) -> Told:
        delay = (self.delay or 0) if self.outcome is Outcome.SNOOZE else self.delay
        return model.settle(*self.ticket, self.outcome.value, delay, retryable=self.retryable)


@dataclass(frozen=True)
class Settle:
    words: tuple[Word, ...]

    async def call(self, broker: Broker) -> object:
        results = await broker.settlements.settle([word.sent() for word in self.words], FULL_ACCESS)
        return [
            Told(result.status, value_or(result.state, ""), value_or(result.attempt, 0), value_or(result.run_at, None))
            for result in results
        ]

    def foretell(self, model: Protocol, told: object) -> object:
        return [word.foretell(model) for word in self.words]


@dataclass(frozen=True)
class Beat:
    worker: str
    tickets: tuple[Ticket, ...]
    seconds: int | None
    holds_all: bool

    async def call(self, broker: Broker) -> object:
        seconds = UNSET if self.seconds is None else self.seconds
        leases = [HeldLease(job_id=job_id, lease_token=token, lease_seconds=seconds) for job_id, token in self.tickets]
        answer = await broker.heartbeats.extend(
            Heartbeat(worker_id=self.worker, leases=leases, holds_all=self.holds_all), FULL_ACCESS
        )
        beats = [(lease.status, lease.action, value_or(lease.lease_expires_at, None)) for lease in answer.leases]
        return beats, set(answer.released)

    def foretell(self, model: Protocol, told: object) -> object:
        beats = [model.extend(*ticket, self.seconds) for ticket in self.tickets]
        return beats, model.reconcile(self.worker, self.tickets) if self.holds_all else set()


@dataclass(frozen=True)
class Expire:
    async def call(self, broker: Broker) -> object:
        await broker.expiry.run_once()
        return None

    def foretell(self, model: Protocol, told: object) -> object:
        model.expire()
        return None


@dataclass(frozen=True)
class Promote:
    async def call(self, broker: Broker) -> object:
        await broker.promotion.run_once()
        return None

    def foretell(self, model: Protocol, told: object) -> object:
        model.promote()
        return None


@dataclass(frozen=True)
class Cancel:
    job_id: UUID

    async def call(self, broker: Broker) -> object:
        try:
            status, _ = await broker.updater.cancel(self.job_id, None)
        except WrongState:
            return 409
        return status

    def foretell(self, model: Protocol, told: object) -> object:
        return model.cancel(self.job_id)


@dataclass(frozen=True)
class Replay:
    """Of a dead letter."""

    job_id: UUID

    async def call(self, broker: Broker) -> object:
        try:
            return (await broker.dead_letters.replay_one(self.job_id)).replay_count
        except NotFound:
            return None

    def foretell(self, model: Protocol, told: object) -> object:
        return model.jobs[self.job_id].replays if model.replay(self.job_id) else None
