"""The audit log as transitions: for each job, in order, its row before and after each change.

Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.audit_log import AuditRow

GONE = ""  # the state of a job that has no row


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of one job.

    Without a row before, the job was inserted; without a row after, it was removed."""

    before: AuditRow | None
    after: AuditRow | None

    @property
    def row(self) -> AuditRow:
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def old(self) -> str:
        return self.before.state if self.before else GONE

    @property
    def new(self) -> str:
        return self.after.state if self.after else GONE

    @property
    def is_claim(self) -> bool:
        return self.new == "running" and self.old != "running"

    @property
    def is_refund(self) -> bool:
        """Whether the broker ended a lease at no cost: the attempt was given back."""
        return (
            self.before is not None
            and self.after is not None
            and self.old == "running"
            and not self.settlement
            and self.after.attempt < self.before.attempt
        )

    @property
    def settlement(self) -> str:
        """Returns the outcome of the settlement that made this change; "" if there is none.

        A row keeps `settled_as` until the next claim."""
        if self.after is None or not self.after.settled_as or self.is_claim:
            return ""
        fresh = self.before is None or self.before.state == "running" or not self.before.settled_as
        return self.after.settled_as.partition(" ")[0] if fresh else ""


def transitions(rows: Iterable[AuditRow]) -> dict[str, list[Transition]]:
    by_job: dict[str, list[AuditRow]] = defaultdict(list)
    for row in rows:
        if row.source != "clock":
            by_job[row.id].append(row)
    return {id: list(_of_job(found)) for id, found in by_job.items()}


def _of_job(rows: list[AuditRow]) -> Iterator[Transition]:
    """A delete and an insert in one transaction are a move to another table, in any order of
    triggers."""
    current: AuditRow | None = None
    removed: AuditRow | None = None
    for row in _deletes_first(rows):
        if removed is not None and (row.op != "INSERT" or row.xid != removed.xid):
            yield Transition(removed, None)
            current = removed = None
        if row.op == "DELETE":
            removed = row
        else:
            yield Transition(removed or current, row)
            current, removed = row, None
    if removed is not None:
        yield Transition(removed, None)


def _deletes_first(rows: list[AuditRow]) -> list[AuditRow]:
    found = list(rows)
    for index, (earlier, later) in enumerate(pairwise(rows)):
        if (
            earlier.xid == later.xid
            and earlier.op == "INSERT"
            and later.op == "DELETE"
            and earlier.source != later.source
        ):
            found[index], found[index + 1] = later, earlier
    return found
