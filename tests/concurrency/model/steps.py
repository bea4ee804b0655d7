"""The steps of a run: each calls a broker, and predicts the result with the model.

Both results are plain values, which the state machine compares.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from app.db.clock import datetime_from_epoch
from app.enqueue.schemas import JobCreate
from app.errors import NotFound, WrongState
from app.http.authorization import FULL_ACCESS
from app.http.schema_types import UNSET, value_or
from app.leases.schemas import ClaimJobs, Heartbeat, HeldLease, Outcome, SentError, Settlement
from app.server.exchange import Client
from tests.concurrency.model.brokers import Broker
from tests.concurrency.model.lease_model import DEFAULT_LEASE, LeaseModel, SettleResult

Lease = tuple[UUID, str]
_ERROR = SentError(message="it broke")


class Step(Protocol):
    async def call(self, broker: Broker) -> object:
        """Calls the broker and returns its result."""

    def expected(self, model: LeaseModel, actual: object) -> object:
        """Applies the step to the model and returns the expected result.

        Ids and tokens, which cannot be predicted, are learned from the actual result.
        """


@dataclass(frozen=True)
class Enqueue:
    queue: str
    priority: int
    max_attempts: int
    delay: int
    key: str | None = None

    async def call(self, broker: Broker) -> object:
        request = JobCreate(
            job_type="model",
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            delay_seconds=self.delay,
        )
        key = f"{self.queue} {self.key}" if self.key else None
        job, _ = await broker.enqueuer.enqueue(request, {}, key, FULL_ACCESS)
        return job.id, job.state, job.attempt, job.deliveries, job.run_at

    def expected(self, model: LeaseModel, actual: object) -> object:
        assert isinstance(actual, tuple)
        job = model.jobs[model.keys[self.key]] if self.key in model.keys else None
        if job is None:
            assert actual[0] not in model.jobs, "the id of another job"
            run_at = model.now + timedelta(seconds=self.delay)
            job = model.enqueue(actual[0], priority=self.priority, max_attempts=self.max_attempts, run_at=run_at)
        if self.key:
            model.keys[self.key] = job.id
        return job.id, job.state, job.attempt, job.deliveries, job.run_at


class DisconnectingClient(Client):
    """Connected at the checks before its statement, and disconnected afterwards.

    Each lane is checked, and a claim that may share a statement once more.
    """

    def __init__(self, checks: int) -> None:
        super().__init__()
        self._checks_left = checks

    @property
    def is_disconnected(self) -> bool:
        self._checks_left -= 1
        return self._checks_left < 0


@dataclass(frozen=True)
class Claim:
    """A claim.

    `disconnects`: the client disconnects while the claim runs, but will repeat the call, because it
    has a key.
    """

    queue: str
    limit: int
    seconds: int
    worker: str
    key: str | None = None
    disconnects: bool = False

    async def call(self, broker: Broker) -> object:
        client = DisconnectingClient(checks=1) if self.disconnects else Client()
        request = ClaimJobs(queues=[self.queue], max_jobs=self.limit, lease_seconds=self.seconds, worker_id=self.worker)
        result = await broker.long_poll.poll(
            request, f"{self.queue} {self.key}" if self.key else None, client, FULL_ACCESS
        )
        return [
            (
                row.id,
                str(row.lease_token),
                row.attempt,
                row.deliveries,
                datetime_from_epoch(row.started_epoch + row.lease_seconds),
            )
            for row in result.rows
        ]

    def expected(self, model: LeaseModel, actual: object) -> object:
        assert isinstance(actual, list)
        tokens = {job_id: token for job_id, token, *_ in actual}
        return [
            (job.id, model.record_token(job, tokens.get(job.id)), job.attempt, job.deliveries, job.lease_expires_at)
            for job in model.claim(self.limit, self.seconds, self.worker, self.key)
        ]


@dataclass(frozen=True)
class ClaimAndDisconnect:
    """A claim whose client disconnects while it runs.

    No client gets the response, and the jobs are returned.
    """

    queue: str
    limit: int
    worker: str

    async def call(self, broker: Broker) -> object:
        client = DisconnectingClient(checks=2)
        request = ClaimJobs(queues=[self.queue], max_jobs=self.limit, worker_id=self.worker)
        return (await broker.long_poll.poll(request, None, client, FULL_ACCESS)).rows

    def expected(self, model: LeaseModel, actual: object) -> object:
        for job in model.claim(self.limit, DEFAULT_LEASE, self.worker, None):
            model.end(job, "return")
        return []


@dataclass(frozen=True)
class SettleItem:
    """One settlement."""

    lease: Lease
    outcome: Outcome
    delay: int | None = None
    retryable: bool = True

    def request(self) -> Settlement:
        delay = UNSET if self.delay is None else self.delay
        return Settlement(
            job_id=self.lease[0],
            lease_token=self.lease[1],
            outcome=self.outcome,
            error=_ERROR if self.outcome is Outcome.FAIL else UNSET,
            retryable=self.retryable if self.outcome is Outcome.FAIL else UNSET,
            retry_after_seconds=delay if self.outcome is Outcome.FAIL else UNSET,
            delay_seconds=(self.delay or 0) if self.outcome is Outcome.SNOOZE else UNSET,
        )

    def expected(self, model: LeaseModel) -> SettleResult:
        delay = (self.delay or 0) if self.outcome is Outcome.SNOOZE else self.delay
        return model.settle(*self.lease, self.outcome.value, delay, retryable=self.retryable)


@dataclass(frozen=True)
class Settle:
    items: tuple[SettleItem, ...]

    async def call(self, broker: Broker) -> object:
        results = await broker.settlements.settle([item.request() for item in self.items], FULL_ACCESS)
        return [
            SettleResult(
                result.status, value_or(result.state, ""), value_or(result.attempt, 0), value_or(result.run_at, None)
            )
            for result in results
        ]

    def expected(self, model: LeaseModel, actual: object) -> object:
        return [item.expected(model) for item in self.items]


@dataclass(frozen=True)
class SendHeartbeat:
    worker: str
    leases: tuple[Lease, ...]
    seconds: int | None
    holds_all: bool

    async def call(self, broker: Broker) -> object:
        seconds = UNSET if self.seconds is None else self.seconds
        leases = [HeldLease(job_id=job_id, lease_token=token, lease_seconds=seconds) for job_id, token in self.leases]
        response = await broker.heartbeats.extend(
            Heartbeat(worker_id=self.worker, leases=leases, holds_all=self.holds_all), FULL_ACCESS
        )
        statuses = [(lease.status, lease.action, value_or(lease.lease_expires_at, None)) for lease in response.leases]
        return statuses, set(response.released)

    def expected(self, model: LeaseModel, actual: object) -> object:
        statuses = [model.extend(*lease, self.seconds) for lease in self.leases]
        return statuses, model.reconcile(self.worker, self.leases) if self.holds_all else set()


@dataclass(frozen=True)
class ExpireLeases:
    async def call(self, broker: Broker) -> object:
        await broker.lease_rescuer.run_once()
        return None

    def expected(self, model: LeaseModel, actual: object) -> object:
        model.expire()
        return None


@dataclass(frozen=True)
class MakeDueJobsReady:
    async def call(self, broker: Broker) -> object:
        await broker.job_scheduler.run_once()
        return None

    def expected(self, model: LeaseModel, actual: object) -> object:
        model.make_due_jobs_ready()
        return None


@dataclass(frozen=True)
class Cancel:
    job_id: UUID

    async def call(self, broker: Broker) -> object:
        try:
            status, _ = await broker.updater.cancel(self.job_id, None, "test")
        except WrongState:
            return 409
        return status

    def expected(self, model: LeaseModel, actual: object) -> object:
        return model.cancel(self.job_id)


@dataclass(frozen=True)
class Replay:
    """Replays a dead letter."""

    job_id: UUID

    async def call(self, broker: Broker) -> object:
        try:
            return (await broker.dead_letters.replay_one(self.job_id, "test")).replay_count
        except NotFound:
            return None

    def expected(self, model: LeaseModel, actual: object) -> object:
        return model.jobs[self.job_id].replays if model.replay(self.job_id) else None
