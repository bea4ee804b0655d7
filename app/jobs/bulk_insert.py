"""Inserts many or large jobs with several statements, each too short to block the event loop."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from app.db.pool import Executor
from app.jobs import store
from app.jobs.rows import NewJob
from app.slices import by_size

# The driver encodes a statement in one go: 2 to 4 ms for each megabyte, during which no other
# request is served.
MAX_STATEMENT_BYTES = 256 * 1024
_payload_of, _metadata_of = attrgetter("payload"), attrgetter("metadata")


async def enqueue_all(transaction: Executor, lane: int, jobs: Sequence[NewJob]) -> None:
    """Inserts jobs of one lane, with several statements if the jobs are large.

    All statements run in one transaction, so all jobs are inserted or none.
    """
    for statement_jobs in by_size(jobs, _size, MAX_STATEMENT_BYTES):
        await store.enqueue(transaction, lane, statement_jobs)


def fit_into_statement(jobs: Sequence[NewJob]) -> bool:
    """Whether jobs without parents fit into one statement.

    Takes 0.1 µs for each job. `_size`, which counts parents, too, takes twice as long.
    """
    texts = chain(map(_payload_of, jobs), filter(None, map(_metadata_of, jobs)))
    return sum(map(len, texts)) <= MAX_STATEMENT_BYTES


def _size(job: NewJob) -> int:
    """Adds up the sizes of the large columns.

    A job may have a thousand parents, and its row contains them twice.
    """
    return len(job.payload) + len(job.metadata or "") + 2 * len(job.depends_on or "")
