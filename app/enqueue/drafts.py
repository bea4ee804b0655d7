"""The draft of a job: a job of an enqueue request that is not stored yet, and its result."""

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
    """One job of an enqueue request: the row to insert, and the result.

    A draft is inserted, is a duplicate, or is rejected:

    * Inserted: `row` is stored.
    * Duplicate: `row` is not stored. `existing` is the id of the job that has the unique key. If
      `replaces` is true, the existing job gets the body of `row`, and `replaced` is the existing
      job afterwards.
    * Rejected: `row` is not stored. `problem` is the reason.
    """

    index: int | None  # position in a batch; None for a single job
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
        """Rejects the job, unless `problem` is None.

        A job that was rejected before keeps its first problem.
        """
        self.problem = self.problem or problem

    def change_row(self, **columns: object) -> None:
        self.row = self.row._replace(**columns)  # type: ignore[arg-type]  # mypy cannot check **columns

    def depend_on(self, parents: Sequence[UUID]) -> None:
        self.parents = parents

    def become_duplicate(self, existing: UUID, *, replaces: bool) -> None:
        """Marks the draft as a duplicate of the job `existing`, which has the unique key.

        If `replaces` is true, the existing job gets the body of this draft later.
        """
        self.existing = existing
        self.replaces = replaces

    def record_replaced(self, replaced: MovedJobRow | None) -> None:
        """Records the result of the attempt to replace the body of the existing job.

        `replaced` is the existing job afterwards. It is None if the job no longer waited, so that
        its body was not replaced.
        """
        self.replaced = replaced

    @property
    def pointer(self) -> str:
        """JSON pointer to the job in the request."""
        return "" if self.index is None else f"/jobs/{self.index}"

    @property
    def job_id(self) -> UUID:
        """The id that the caller gets. For a duplicate this is the id of the existing job."""
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
        """Whether the INSERT must share a transaction with other statements.

        This is so for a job with a unique key or parents, and in a queue that has `max_waiting` or
        is created with the job.
        """
        return self.unique is not None or bool(self.parents) or needs_transaction(self.queue)


def needs_transaction(queue: Queue) -> bool:
    """Whether the INSERT of any job of this queue must share a transaction with other statements."""
    return queue.max_waiting is not None or queue.is_draft


def new_rows_by_lane(drafts: Iterable[JobDraft]) -> dict[int, list[NewJob]]:
    """Groups the rows of the accepted drafts by lane.

    Lanes and ids ascend, because transactions lock jobs in this order.
    """
    return group_by_lane([draft.row for draft in drafts if draft.accepted], id_of_row)
