"""Inserts many or large jobs with several statements, each too short to block the event loop."""

from collections.abc import Sequence

from app.db.pool import Executor
from app.jobs import store
from app.jobs.new_jobs import NewJobs
from app.jobs.rows import NewJob
from app.slices import by_size

# The driver encodes a statement in one go: 2 to 4 ms for each megabyte, during which no other
# request is served.
MAX_STATEMENT_BYTES = 256 * 1024


async def enqueue_all(transaction: Executor, lane: int, rows: Sequence[NewJob]) -> None:
    """Inserts jobs of one lane, with several statements if the jobs are large.

    All statements run in one transaction, so all jobs are inserted or none.
    """
    jobs = NewJobs.of(rows)
    for indexes in by_size(range(len(jobs)), jobs.sizes().__getitem__, MAX_STATEMENT_BYTES):
        await store.enqueue(transaction, lane, jobs[indexes[0] : indexes[-1] + 1])


def fit_into_statement(jobs: NewJobs) -> bool:
    """Whether the jobs fit into one statement. Takes 0.1 µs a job."""
    return sum(jobs.sizes()) <= MAX_STATEMENT_BYTES
