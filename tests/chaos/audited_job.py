"""Builds audit logs for tests of the checker: the rows of one job from its enqueue to its end."""

from typing import Any

from tests.chaos.checker import Violations
from tests.chaos.final_state import QueueLimits, RateLimit
from tests.chaos.history_builder import LEASE_SECONDS, START, HistoryBuilder

QUEUES = {
    1: QueueLimits(name="work"),
    2: QueueLimits(name="limited", max_running=2),
    3: QueueLimits(name="grouped", max_running_per_group=1),
    4: QueueLimits(name="rated", rate=RateLimit(limit=2, per_seconds=1)),
    5: QueueLimits(name="fair", fair=True),
    6: QueueLimits(name="wide"),
    7: QueueLimits(name="paused"),
}


class AuditedJob:
    """The rows of one job: enqueued, claimed, finished.

    The client history agrees with them, so that only checks of the audit log can find
    violations."""

    def __init__(
        self, history: HistoryBuilder, job: str = "a", *, sent: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        self.history = history
        self.job = job
        self._sent = sent or {}  # fields of the enqueue request
        self.fields = fields
        self.current: dict[str, Any] = {"state": "", "deliveries": 0, "attempt": 0, "crashes": 0}

    def enqueued(self, at: float = 0.05, state: str = "ready", **fields: Any) -> "AuditedJob":
        self.history.enqueue(0, self.job, key=f"k-{self.job}", **self._sent)
        return self.changed(at, state, op="INSERT", **fields)

    def claimed(self, at: float, **fields: Any) -> "AuditedJob":
        delivery = self.current["deliveries"] + 1
        counts = {"deliveries": delivery, "attempt": self.current["attempt"] + 1}
        times = {"lease_until": START + at + LEASE_SECONDS, "settled_as": "", "token": f"t{delivery}"}
        self.changed(at, "running", **{**counts, **times, **fields})
        self.history.claim(at - 0.05, self.job, delivery=delivery, attempt=self.current["attempt"], proc=f"w{delivery}")
        return self

    def requeued(self, at: float, state: str = "ready", **fields: Any) -> "AuditedJob":
        """The broker requeues the job after its lease has expired, unless the fields differ."""
        return self.changed(at, state, **{"crashes": self.current["crashes"] + 1, "lease_until": 0.0, **fields})

    def settled(self, at: float, outcome: str, state: str, **fields: Any) -> "AuditedJob":
        self.history.settle(
            at - 0.05,
            self.job,
            outcome,
            delivery=self.current["deliveries"],
            retryable=fields.get("reason") != "not_retryable",
        )
        return self.changed(at, state, settled_as=outcome, lease_until=0.0, **fields)

    def moved(self, at: float, state: str, **fields: Any) -> "AuditedJob":
        """The job moves to finished jobs or dead letters; that row is recorded first."""
        source = "dead_letters" if state == "dead" else "finished_jobs"
        before = self.current
        after = {**before, "state": state, **fields}
        self.recorded(at, op="INSERT", source=source, **after)
        self.recorded(at, op="DELETE", **before)
        self.current = after
        return self

    def dead_lettered(self, at: float) -> "AuditedJob":
        self.history.settle(at - 0.05, self.job, "fail", delivery=self.current["deliveries"], retryable=False)
        return self.moved(at, "dead", reason="not_retryable", settled_as="fail")

    def replayed(self, at: float, **fields: Any) -> "AuditedJob":
        """The job is replayed in its queue, with attempts and crashes at 0."""
        self.recorded(at, op="DELETE", source="dead_letters", **self.current)
        return self.changed(
            at, "ready", op="INSERT", **{"attempt": 0, "crashes": 0, "settled_as": "", "reason": "", **fields}
        )

    def completed(self, at: float) -> "AuditedJob":
        self.history.settle(at - 0.05, self.job, delivery=self.current["deliveries"])
        return self.moved(at, "completed", settled_as="complete")

    def removed(self, at: float) -> "AuditedJob":
        source = {"dead": "dead_letters", "completed": "finished_jobs", "cancelled": "finished_jobs"}.get(
            self.current["state"], "jobs"
        )
        self.recorded(at, op="DELETE", source=source, **self.current)
        self.current = {**self.current, "state": ""}
        return self

    def audit_violations(self) -> Violations:
        counts = {name: self.current[name] for name in ("deliveries", "attempt", "crashes")}
        if self.current["state"]:
            self.history.store(
                self.job, self.current["state"], reason=self.current.get("reason", ""), max_attempts=5, **counts
            )
        found = self.history.violations(queues=QUEUES)
        return {name: violations for name, violations in found.items() if name.startswith("W")}

    def changed(self, at: float, state: str, *, op: str = "UPDATE", **fields: Any) -> "AuditedJob":
        old, self.current = self.current["state"], {**self.current, **self.fields, "state": state, **fields}
        self.recorded(at, op=op, old=old, **self.current)
        return self

    def recorded(self, at: float, **fields: Any) -> None:
        self.history.change(at, self.job, **fields)
