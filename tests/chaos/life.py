"""Records of the witness written by hand, for tests of the checker: one job's rows from its making to its end."""

from typing import Any

from tests.chaos.checker import Found
from tests.chaos.final import Rate, Rules
from tests.chaos.story import BEGIN, LEASE, Story

QUEUES = {
    1: Rules(name="work"),
    2: Rules(name="limited", max_running=2),
    3: Rules(name="grouped", max_running_per_group=1),
    4: Rules(name="rated", rate=Rate(limit=2, per_seconds=1)),
}


class Life:
    """One job's rows: made, claimed, ended. The client history agrees with them, so that only the witness can find what is wrong."""

    def __init__(self, story: Story, job: str = "a", *, sent: dict[str, Any] | None = None, **fields: Any) -> None:
        self.story = story
        self.job = job
        self._sent = sent or {}  # with the call that enqueues it
        self.fields = fields
        self.now: dict[str, Any] = {"state": "", "deliveries": 0, "attempt": 0, "crashes": 0}

    def made(self, at: float = 0.05, state: str = "ready", **fields: Any) -> "Life":
        self.story.enqueue(0, self.job, key=f"k-{self.job}", **self._sent)
        return self.changed(at, state, op="INSERT", **fields)

    def claimed(self, at: float, **fields: Any) -> "Life":
        delivery = self.now["deliveries"] + 1
        counts = {"deliveries": delivery, "attempt": self.now["attempt"] + 1}
        times = {"lease_until": BEGIN + at + LEASE, "settled_as": "", "token": f"t{delivery}"}
        self.changed(at, "running", **{**counts, **times, **fields})
        self.story.claim(at - 0.05, self.job, delivery=delivery, attempt=self.now["attempt"], by=f"w{delivery}")
        return self

    def put_back(self, at: float, state: str = "ready", **fields: Any) -> "Life":
        """The broker requeues the job after the lease has expired, unless the fields say otherwise."""
        return self.changed(at, state, **{"crashes": self.now["crashes"] + 1, "lease_until": 0.0, **fields})

    def settled(self, at: float, outcome: str, state: str, **fields: Any) -> "Life":
        self.story.settle(
            at - 0.05,
            self.job,
            outcome,
            delivery=self.now["deliveries"],
            retryable=fields.get("reason") != "not_retryable",
        )
        return self.changed(at, state, settled_as=outcome, lease_until=0.0, **fields)

    def moved(self, at: float, state: str, **fields: Any) -> "Life":
        """The job moves to the table of finished jobs or of dead letters, whose row is recorded first."""
        place = "dead_letters" if state == "dead" else "finished_jobs"
        before = self.now
        after = {**before, "state": state, **fields}
        self.recorded(at, op="INSERT", place=place, **after)
        self.recorded(at, op="DELETE", **before)
        self.now = after
        return self

    def died(self, at: float) -> "Life":
        self.story.settle(at - 0.05, self.job, "fail", delivery=self.now["deliveries"], retryable=False)
        return self.moved(at, "dead", reason="not_retryable", settled_as="fail")

    def replayed(self, at: float, **fields: Any) -> "Life":
        """The job is replayed in its queue, with its attempts and crashes at 0."""
        self.recorded(at, op="DELETE", place="dead_letters", **self.now)
        return self.changed(
            at, "ready", op="INSERT", **{"attempt": 0, "crashes": 0, "settled_as": "", "reason": "", **fields}
        )

    def completed(self, at: float) -> "Life":
        self.story.settle(at - 0.05, self.job, delivery=self.now["deliveries"])
        return self.moved(at, "completed", settled_as="complete")

    def removed(self, at: float) -> "Life":
        place = {"dead": "dead_letters", "completed": "finished_jobs", "cancelled": "finished_jobs"}.get(
            self.now["state"], "jobs"
        )
        self.recorded(at, op="DELETE", place=place, **self.now)
        self.now = {**self.now, "state": ""}
        return self

    def kept(self) -> Found:
        counts = {name: self.now[name] for name in ("deliveries", "attempt", "crashes")}
        if self.now["state"]:
            self.story.keep(self.job, self.now["state"], reason=self.now.get("reason", ""), max_attempts=5, **counts)
        found = self.story.verdict(queues=QUEUES)
        return {name: breaches for name, breaches in found.items() if name.startswith("W")}

    def changed(self, at: float, state: str, *, op: str = "UPDATE", **fields: Any) -> "Life":
        old, self.now = self.now["state"], {**self.now, **self.fields, "state": state, **fields}
        self.recorded(at, op=op, old=old, **self.now)
        return self

    def recorded(self, at: float, **fields: Any) -> None:
        self.story.change(at, self.job, **fields)
