"""The lease protocol in plain Python, as API.md has it: what every call answers, what becomes of every job. Knows no SQL, no broker."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

LIVE = ("scheduled", "ready", "running")
MAX_CRASHES = 3
MAX_DELIVERIES = 8
BASE_SECONDS, FACTOR = 30, 2  # no jitter: a retry is due when it is due
DEFAULT_LEASE = 60
SETTLED_IN = timedelta(seconds=2)


class Told(NamedTuple):
    """What a settlement is answered."""

    status: str
    state: str
    attempt: int
    run_at: datetime | None


class Row(NamedTuple):
    """A job as the database should have it."""

    state: str
    reason: str | None
    attempt: int
    crashes: int
    deliveries: int
    replays: int
    run_at: datetime
    until: datetime | None
    asked_to_stop: bool


@dataclass
class Tracked:
    """`token` is that of the last hand-out, None if nobody has heard it; `used_for` what it has settled. `deliveries` is the epoch."""

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
    used_for: str | None = None
    at_once: bool = False
    worker: str | None = None
    began: datetime | None = None
    until: datetime | None = None
    missing: bool = False
    asked_to_stop: bool = False

    def row(self) -> Row:
        return Row(
            *(self.state, self.reason, self.attempt, self.crashes, self.deliveries, self.replays, self.run_at),
            *(self.until, self.asked_to_stop and self.state != "dead"),
        )


@dataclass
class Protocol:
    now: datetime
    jobs: dict[UUID, Tracked] = field(default_factory=dict)
    receipts: dict[str, list[tuple[UUID, int]]] = field(default_factory=dict)
    keys: dict[str, UUID] = field(default_factory=dict)
    tickets: list[tuple[UUID, str]] = field(default_factory=list)  # every lease that anybody has heard of, oldest first

    def copy(self) -> "Protocol":
        jobs = {job_id: replace(job) for job_id, job in self.jobs.items()}
        return Protocol(self.now, jobs, dict(self.receipts), dict(self.keys), list(self.tickets))

    def rows(self) -> dict[UUID, Row]:
        return {job_id: job.row() for job_id, job in self.jobs.items()}

    def those(self, *states: str) -> list[Tracked]:
        return sorted((job for job in self.jobs.values() if job.state in states), key=lambda job: job.id)

    # Producers

    def enqueue(self, job_id: UUID, *, priority: int, max_attempts: int, run_at: datetime) -> Tracked:
        state = "scheduled" if run_at > self.now else "ready"
        self.jobs[job_id] = Tracked(job_id, priority, max_attempts, run_at, state)
        return self.jobs[job_id]

    def cancel(self, job_id: UUID) -> int:
        """The status of the answer."""
        job = self.jobs[job_id]
        if job.state in ("completed", "dead"):
            return 409
        params, job.asked_to_stop = job.asked_to_stop, True
        if job.state in ("scheduled", "ready"):
            job.state, job.reason = "cancelled", "cancelled_by_user"
        return 202 if job.state == "running" and not params else 200

    def replay(self, job_id: UUID) -> bool:
        job = self.jobs[job_id]
        if job.state != "dead":
            return False
        job.state, job.reason, job.run_at = "ready", None, self.now
        job.attempt = job.crashes = 0
        job.token = job.used_for = None
        job.replays += 1
        return True

    # Workers

    def claim(self, most: int, seconds: int, worker: str, key: str | None) -> list[Tracked]:
        """With a key that was used before: what still lives of it, nothing if some of it was settled, and else a new claim."""
        again = self._replayed(self.receipts.get(key, [])) if key else None
        if again is not None:
            return again
        taken = sorted(self.those("ready"), key=lambda job: (-job.priority, job.id))[:most]
        for job in taken:
            self._begin(job, seconds, worker)
        if key and taken:
            self.receipts[key] = [(job.id, job.deliveries) for job in taken]
        return taken

    def _replayed(self, receipt: Iterable[tuple[UUID, int]]) -> list[Tracked] | None:
        same = [self.jobs[job_id] for job_id, delivery in receipt if self.jobs[job_id].deliveries == delivery]
        live = [job for job in same if job.state == "running"]
        return live if live or any(job.used_for for job in same) else None

    def _begin(self, job: Tracked, seconds: int, worker: str) -> None:
        job.state, job.reason = "running", None
        job.attempt += 1
        job.deliveries += 1
        job.token = job.used_for = None
        job.worker, job.began, job.until = worker, self.now, self.now + timedelta(seconds=seconds)
        job.missing = False

    def load(self, job: Tracked, token: str | None) -> str | None:
        """The token of a lease that was told for the first time. One that was seen before cannot be it."""
        if job.token is None and token is not None and token not in {known for _, known in self.tickets}:
            job.token = token
            self.tickets.append((job.id, token))
        return job.token

    def settle(self, job_id: UUID, token: str, outcome: str, delay: int | None, *, retryable: bool) -> Told:
        job = self.jobs[job_id]
        if token == job.token and job.used_for is None and job.state in LIVE:
            self.end(job, outcome, delay, retryable=retryable)
            job.used_for = outcome
            return Told("settled", job.state, job.attempt, job.run_at if job.state in LIVE else None)
        if token == job.token and job.used_for == outcome:
            was_put_off = job.state == "ready" and outcome in ("fail", "snooze") and not job.at_once
            state = "scheduled" if was_put_off else job.state
            return Told("already_settled", state, job.attempt, job.run_at if job.state in LIVE else None)
        return Told("lease_lost", job.state, job.attempt, None)

    def extend(self, job_id: UUID, token: str, seconds: int | None) -> tuple[str, str, datetime | None]:
        job = self.jobs[job_id]
        if token != job.token or job.state != "running" or job.until is None:
            return "lost", "abandon", None
        params = self.now + timedelta(seconds=DEFAULT_LEASE if seconds is None else seconds)
        job.until = params if seconds is not None else max(params, job.until)
        job.missing = False
        return "extended", "cancel" if job.asked_to_stop else "continue", job.until

    def reconcile(self, worker: str, listed: Iterable[tuple[UUID, str]]) -> set[UUID]:
        """What goes back, as it was missing last time too."""
        held = [
            job
            for job in self.those("running")
            if job.worker == worker and job.began and job.began <= self.now - SETTLED_IN
        ]
        missing = [job for job in held if (job.id, job.token) not in set(listed)]
        again = [job for job in missing if job.missing]
        for job in missing:
            job.missing = True
        for job in again:
            self.end(job, "reclaim")
        return {job.id for job in again}

    # With no request

    def expire(self) -> None:
        for job in self.those("running"):
            if job.until is not None and job.until <= self.now:
                self.end(job, "expire")

    def promote(self) -> None:
        for job in self.those("scheduled"):
            if job.run_at <= self.now:
                job.state, job.reason = "ready", None

    # How leases end

    def end(self, job: Tracked, outcome: str, delay: int | None = None, *, retryable: bool = True) -> None:
        held, job.until = job.state == "running", None
        job.crashes += outcome == "expire"
        job.state, job.reason = self._after(job, outcome, retryable=retryable)
        if held and outcome in ("snooze", "release", "undo", "reclaim") and job.state != "cancelled":
            job.attempt -= 1
        if job.state == "scheduled":
            self._put_off(job, BASE_SECONDS * FACTOR ** (job.attempt - 1) if delay is None else delay)

    def _after(self, job: Tracked, outcome: str, *, retryable: bool) -> tuple[str, str | None]:
        if outcome == "complete":
            return "completed", None
        if job.asked_to_stop:
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

    def _put_off(self, job: Tracked, seconds: int) -> None:
        job.run_at = self.now + timedelta(seconds=seconds)
        job.at_once = seconds == 0
        if job.at_once:
            job.state, job.reason = "ready", None
