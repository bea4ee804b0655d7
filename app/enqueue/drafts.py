"""A job on its way in: what was asked for, the row it would be, and what became of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.db.lanes import shared_digest
from app.errors import Problem
from app.jobs.schemas import Unique
from app.jobs.store import NewJob, UpdatedRow
from app.queues.cache import Queue


@dataclass(slots=True)
class JobDraft:
    """`row` is what would be stored. With `existing` it is not: its unique key belongs to that job already, which takes the row's body
    if it `replaces`; `replaced` is what it has become then."""

    index: int | None  # in a batch
    queue: Queue
    lane: int
    row: NewJob
    unique: Unique | None = None
    parents: Sequence[UUID] = ()
    existing: UUID | None = None
    replaces: bool = False
    replaced: UpdatedRow | None = None
    problem: Problem | None = None

    @property
    def at(self) -> str:
        """The pointer to it."""
        return "" if self.index is None else f"/jobs/{self.index}"

    @property
    def job_id(self) -> UUID:
        return self.existing or self.row.id

    @property
    def accepted(self) -> bool:
        return self.existing is None and self.problem is None

    @property
    def unique_digest(self) -> UUID:
        assert self.unique is not None
        return shared_digest("unique", str(self.queue.id), self.unique.key)

    @property
    def needs_transaction(self) -> bool:
        return (
            self.unique is not None or bool(self.parents) or self.queue.max_waiting is not None or self.queue.is_draft
        )


def new_rows(entries: Iterable[JobDraft]) -> list[NewJob]:
    return [entry.row for entry in entries if entry.accepted]
