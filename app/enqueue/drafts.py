"""The draft of a job: a job of an enqueue request before it is stored, and what became of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from uuid import UUID

from app.db.lanes import group_by_lane, shared_digest
from app.enqueue.schemas import Unique
from app.errors import Problem
from app.events import MovedJobRow
from app.jobs.rows import NewJob
from app.queues.cache import Queue

id_of_row: Callable[[NewJob], UUID] = attrgetter("id")


@dataclass(slots=True)
class JobDraft:
    """One job of an enqueue request: the row to insert, and the outcome.

    A draft is inserted, is a duplicate, or is rejected:

    * Inserted: `row` is stored.
    * Duplicate: `existing` is the job that has the unique key. `row` is not stored. If `replaces`,
      the existing job takes the body of `row`, and `replaced` describes the job afterwards.
    * Rejected: `problem` says why.
    """

    index: int | None  # position in a batch
    queue: Queue
    lane: int
    row: NewJob
    unique: Unique | None = None
    parents: Sequence[UUID] = ()
    existing: UUID | None = None
    replaces: bool = False
    replaced: MovedJobRow | None = None
    problem: Problem | None = None

    def reject(self, problem: Problem | None) -> None:
        """Rejects the job, unless `problem` is None. A job that was rejected before keeps its
        first problem."""
        self.problem = self.problem or problem

    def change_row(self, **columns: object) -> None:
        self.row = self.row._replace(**columns)  # type: ignore[arg-type]  # mypy cannot check **columns

    def depend_on(self, parents: Sequence[UUID]) -> None:
        self.parents = parents

    def become_duplicate(self, existing: UUID, *, replaces: bool) -> None:
        """Marks the job as a duplicate of the existing one."""
        self.existing = existing
        self.replaces = replaces

    def record_replaced(self, replaced: MovedJobRow | None) -> None:
        """Records the state of the existing job after it has taken the new body.

        None means that it has not taken it, because it no longer waits.
        """
        self.replaced = replaced

    @property
    def pointer(self) -> str:
        """JSON pointer to the job in the request."""
        return "" if self.index is None else f"/jobs/{self.index}"

    @property
    def job_id(self) -> UUID:
        """The id that the caller gets: of the existing job if there is one, else of the new job."""
        return self.existing or self.row.id

    @property
    def accepted(self) -> bool:
        """Whether the row will be inserted."""
        return self.existing is None and self.problem is None

    @property
    def unique_digest(self) -> UUID:
        assert self.unique is not None
        return shared_digest("unique", str(self.queue.id), self.unique.key)

    @property
    def needs_transaction(self) -> bool:
        """Whether keys, parents or queues must be read, locked or written with the job."""
        return (
            self.unique is not None or bool(self.parents) or self.queue.max_waiting is not None or self.queue.is_draft
        )


def new_rows_by_lane(drafts: Iterable[JobDraft]) -> dict[int, list[NewJob]]:
    """Groups the rows to insert by lane, in lock order."""
    return group_by_lane([draft.row for draft in drafts if draft.accepted], id_of_row)
