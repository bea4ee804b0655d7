"""The jobs of a batch as columns.

Most fields of a batch are absent, or have few distinct values. The broker handles them once for the
batch, and not once for each job.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar
from uuid import UUID

from msgspec.structs import astuple

from app.enqueue.drafts import needs_transaction
from app.enqueue.schemas import BatchJob
from app.errors import Problem
from app.http.schema_types import UNSET
from app.jobs.new_jobs import NewJobs
from app.queues.cache import Queue
from app.slices import map_in_slices

R = TypeVar("R")

# A job with one of these fields needs a decision of its own: whether it is a duplicate, or which
# jobs are its parents.
_DECISION_FIELDS = frozenset({"unique", "ref", "depends_on"})


class JobTable:
    """The jobs of a batch, or their problems.

    items       the job at each position of the batch, or its problem
    jobs        the jobs without a problem
    positions   the position of each of these jobs in the batch
    columns     the values of each field, in the order of `jobs`; without the fields that no job has
    """

    def __init__(self, items: Sequence[BatchJob | Problem]) -> None:
        self.items = items
        self.positions = [position for position, item in enumerate(items) if isinstance(item, BatchJob)]
        self.jobs = [item for item in items if isinstance(item, BatchJob)]
        names = type(self.jobs[0]).__struct_fields__ if self.jobs else ()
        columns = zip(*map(astuple, self.jobs), strict=True)
        self.columns: Mapping[str, Sequence[Any]] = {
            name: column
            for name, column in zip(names, columns, strict=True)
            if column[0] is not UNSET or column.count(UNSET) < len(column)
        }

    @property
    def queue_names(self) -> Sequence[str]:
        names = self.columns.get("queue", (UNSET,) * len(self.jobs))
        return ["default" if name is UNSET else name for name in names] if UNSET in names else names

    @property
    def names(self) -> set[str]:
        """The distinct names of queues, job types, groups and refs."""
        columns = (self.columns.get(name, ()) for name in ("job_type", "queue", "group", "ref"))
        return set(chain.from_iterable(columns)) - {UNSET}

    def values_or(self, name: str, defaults: Sequence[Any] | None) -> Sequence[Any] | None:
        """Returns a column with defaults for the jobs that do not have the field. None means NULLs."""
        values = self.columns.get(name)
        if values is None:
            return defaults
        if UNSET not in values:
            return values
        pairs = zip(values, defaults or [None] * len(values), strict=True)
        return [default if value is UNSET else value for value, default in pairs]

    async def convert(self, name: str, function: Callable[[Any], R]) -> list[R] | None:
        """Converts each value of a column. Returns None if no job has the field."""
        return await map_in_slices(function, self.columns[name]) if name in self.columns else None

    def select(self, indexes: Sequence[int]) -> "JobTable":
        """Returns the table of these jobs only."""
        return self if len(indexes) == len(self.jobs) else JobTable([self.jobs[index] for index in indexes])

    def reject(self, problems: Mapping[int, Problem | None]) -> "JobTable":
        """Returns the table with these problems, by position, instead of the jobs."""
        if not any(problems.values()):
            return self
        return JobTable([problems.get(position) or item for position, item in enumerate(self.items)])


@dataclass(frozen=True, slots=True)
class NewBatch:
    """The jobs of a batch as they are inserted: as columns, for each lane.

    `ids` and `lanes` are in the order of `table.jobs`. The lanes in `jobs_by_lane` ascend.
    """

    table: JobTable
    ids: Sequence[UUID]
    lanes: Sequence[int]
    queues: Mapping[int, Queue]  # by lane
    jobs_by_lane: Mapping[int, NewJobs]

    @property
    def needs_drafts(self) -> bool:
        """Whether a job needs a decision of its own, or has a problem."""
        return (
            len(self.table.jobs) < len(self.table.items)
            or not _DECISION_FIELDS.isdisjoint(self.table.columns)
            or any(map(needs_transaction, self.queues.values()))
        )
