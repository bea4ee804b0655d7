"""The lease protocol in plain Python: the response of every call and the state of every job.

Knows no SQL and no broker.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

LIVE = ("scheduled", "ready", "running")
MAX_CRASHES = 3
MAX_DELIVERIES = 8
BASE_SECONDS, FACTOR = 30, 2  # no jitter, so that the model knows when a retry is due
DEFAULT_LEASE = 60
RECONCILE_AFTER = timedelta(seconds=2)


class SettleResult(NamedTuple):
    """The result of a settlement."""

    status: str
    state: str
    attempt: int
    run_at: datetime | None


class Row(NamedTuple):
    """A job as the database should store it."""

    state: str
    reason: str | None
    attempt: int
    crashes: int
    deliveries: int
    replays: int
    run_at: datetime
    lease_expires_at: datetime | None
    cancel_requested: bool


@dataclass
class ModelJob:
    """A job of the model.

    `token` is that of the last delivery, None if no client has received it. `settled_as` is the
    outcome that the token was used for. `deliveries` identifies the delivery. `is_refunded`: the
    broker has ended the lease and given the attempt back.
    """

    id: UUID
    priority: int
    max_attempts: int
    run_at: datetime
    state: str
    reason: str | None = None
    attempt: int = 0
    crashes: int = 0
    deliveries: int = 0
    replays: int = 0
    token: str | None = None
    settled_as: str | None = None
    is_immediate: bool = False
    worker: str | None = None
    started_at: datetime | None = None
    lease_expires_at: datetime | None = None
    is_unreported: bool = False
    is_refunded: bool = False
    cancel_requested: bool = False

    def row(self) -> Row:
        return Row(
            *(self.state, self.reason, self.attempt, self.crashes, self.deliveries, self.replays, self.run_at),
            *(self.lease_expires_at, self.cancel_requested and self.state != "dead"),
        )


@dataclass
class LeaseModel:
    now: datetime
    jobs: dict[UUID, ModelJob] = field(default_factory=dict)
    receipts: dict[str, list[tuple[UUID, int]]] = field(default_factory=dict)
    keys: dict[str, UUID] = field(default_factory=dict)
    # Every lease that a client has received, oldest first.
    leases: list[tuple[UUID, str]] = field(default_factory=list)

    def copy(self) -> "LeaseModel":
        jobs = {job_id: replace(job) for job_id, job in self.jobs.items()}
        return LeaseModel(self.now, jobs, dict(self.receipts), dict(self.keys), list(self.leases))

    def rows(self) -> dict[UUID, Row]:
        return {job_id: job.row() for job_id, job in self.jobs.items()}

    def jobs_in(self, *states: str) -> list[ModelJob]:
        return sorted((job for job in self.jobs.values() if job.state in states), key=lambda job: job.id)

    # Producers

    def enqueue(self, job_id: UUID, *, priority: int, max_attempts: int, run_at: datetime) -> ModelJob:
        state = "scheduled" if run_at > self.now else "ready"
        self.jobs[job_id] = ModelJob(job_id, priority, max_attempts, run_at, state)
        return self.jobs[job_id]

    def cancel(self, job_id: UUID) -> int:
        """Returns the status code of the response."""
        job = self.jobs[job_id]
        if job.state in ("completed", "dead"):
            return 409
        was_requested, job.cancel_requested = job.cancel_requested, True
        if job.state in ("scheduled", "ready"):
            job.state, job.reason = "cancelled", "cancelled_by_user"
        return 202 if job.state == "running" and not was_requested else 200

    def replay(self, job_id: UUID) -> bool:
        job = self.jobs[job_id]
        if job.state != "dead":
            return False
        job.state, job.reason, job.run_at = "ready", None, self.now
        job.attempt = job.crashes = 0
        job.token = job.settled_as = None
        job.replays += 1
        return True

    # Workers

    def claim(self, limit: int, seconds: int, worker: str, key: str | None) -> list[ModelJob]:
        """Claims ready jobs. A repeated key gets its live leases, or none if some were settled.

        If all its leases have expired, it claims again.
        """
        replayed = self._replay_receipt(self.receipts.get(key, [])) if key else None
        if replayed is not None:
            return replayed
        claimed = sorted(self.jobs_in("ready"), key=lambda job: (-job.priority, job.id))[:limit]
        for job in claimed:
            self._start(job, seconds, worker)
        if key and claimed:
            self.receipts[key] = [(job.id, job.deliveries) for job in claimed]
        return claimed

    def _replay_receipt(self, receipt: Iterable[tuple[UUID, int]]) -> list[ModelJob] | None:
        same = [self.jobs[job_id] for job_id, delivery in receipt if self.jobs[job_id].deliveries == delivery]
        live = [job for job in same if job.state == "running"]
        return live if live or any(job.settled_as for job in same) else None

    def _start(self, job: ModelJob, seconds: int, worker: str) -> None:
        job.state, job.reason = "running", None
        job.attempt += 1
        job.deliveries += 1
        job.token = job.settled_as = None
        job.worker, job.started_at = worker, self.now
        job.lease_expires_at = self.now + timedelta(seconds=seconds)
        job.is_unreported = job.is_refunded = False

    def record_token(self, job: ModelJob, token: str | None) -> str | None:
        """Learns the token of a lease from its first response.

        A token of an earlier lease is not accepted.
        """
        if job.token is None and token is not None and token not in {known for _, known in self.leases}:
            job.token = token
            self.leases.append((job.id, token))
        return job.token

    def settle(self, job_id: UUID, token: str, outcome: str, delay: int | None, *, retryable: bool) -> SettleResult:
        job = self.jobs[job_id]
        if token == job.token and job.settled_as is None and job.state in LIVE:
            self.end(job, outcome, delay, retryable=retryable)
            job.settled_as = outcome
            return SettleResult("settled", job.state, job.attempt, job.run_at if job.state in LIVE else None)
        if token == job.token and job.settled_as == outcome:
            was_scheduled = job.state == "ready" and outcome in ("fail", "snooze") and not job.is_immediate
            state = "scheduled" if was_scheduled else job.state
            return SettleResult("already_settled", state, job.attempt, job.run_at if job.state in LIVE else None)
        return SettleResult("lease_lost", job.state, job.attempt, None)

    def extend(self, job_id: UUID, token: str, seconds: int | None) -> tuple[str, str, datetime | None]:
        job = self.jobs[job_id]
        if token != job.token or job.state != "running" or job.lease_expires_at is None:
            return "lost", "abandon", None
        extended = self.now + timedelta(seconds=DEFAULT_LEASE if seconds is None else seconds)
        job.lease_expires_at = extended if seconds is not None else max(extended, job.lease_expires_at)
        job.is_unreported = False
        return "extended", "cancel" if job.cancel_requested else "continue", job.lease_expires_at

    def reconcile(self, worker: str, listed: Iterable[tuple[UUID, str]]) -> set[UUID]:
        """Returns the leases that the previous heartbeat did not list either."""
        held = [
            job
            for job in self.jobs_in("running")
            if job.worker == worker and job.started_at and job.started_at <= self.now - RECONCILE_AFTER
        ]
        unreported = [job for job in held if (job.id, job.token) not in set(listed)]
        second_time = [job for job in unreported if job.is_unreported]
        for job in unreported:
            job.is_unreported = True
        for job in second_time:
            self.end(job, "reconcile")
        return {job.id for job in second_time}

    # Without a request

    def expire(self) -> None:
        for job in self.jobs_in("running"):
            if job.lease_expires_at is not None and job.lease_expires_at <= self.now:
                self.end(job, "expire")

    def make_due_jobs_ready(self) -> None:
        for job in self.jobs_in("scheduled"):
            if job.run_at <= self.now:
                job.state, job.reason = "ready", None

    # How leases end

    def end(self, job: ModelJob, outcome: str, delay: int | None = None, *, retryable: bool = True) -> None:
        was_running, job.lease_expires_at = job.state == "running", None
        job.crashes += outcome == "expire"
        if outcome == "fail" and job.is_refunded:
            job.attempt += 1
        job.state, job.reason = self._next_state(job, outcome, retryable=retryable)
        if was_running and outcome in ("snooze", "release", "return", "reconcile") and job.state != "cancelled":
            job.attempt -= 1
            job.is_refunded = True
        if job.state == "scheduled":
            self._schedule(job, BASE_SECONDS * FACTOR ** (job.attempt - 1) if delay is None else delay)

    def _next_state(self, job: ModelJob, outcome: str, *, retryable: bool) -> tuple[str, str | None]:
        if outcome == "complete":
            return "completed", None
        if job.cancel_requested:
            return "cancelled", "cancelled_by_user"
        if outcome == "fail" and not retryable:
            return "dead", "not_retryable"
        if outcome == "expire" and job.crashes >= MAX_CRASHES:
            return "dead", "poison"
        if outcome in ("fail", "expire") and job.attempt >= job.max_attempts:
            return "dead", "attempts_exhausted"
        if job.deliveries >= MAX_DELIVERIES:
            return "dead", "undeliverable"
        return {"fail": ("scheduled", "retry_backoff"), "snooze": ("scheduled", "snoozed")}.get(
            outcome, ("ready", None)
        )

    def _schedule(self, job: ModelJob, seconds: int) -> None:
        job.run_at = self.now + timedelta(seconds=seconds)
        job.is_immediate = seconds == 0
        if job.is_immediate:
            job.state, job.reason = "ready", None
