"""Reads the results of the parents of claimed jobs, for claims that request them.

Reads the states of the parents and the sizes of their results first, then the results that fit into
the response. The results of a response have the same size limit as its jobs: a result is repeated
for every child of its parent, so a claim of few jobs could have a response of gigabytes.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.dependencies import store
from app.dependencies.store import ParentSize
from app.http.schema_types import UNSET, raw_or_unset
from app.jobs.rows import ClaimedRow
from app.leases.schemas import ParentResult

ParentResults = Mapping[UUID, list[ParentResult]]  # by id of the claimed job, in the order of depends_on


async def read_parent_results(infra: Infrastructure, rows: Sequence[ClaimedRow]) -> ParentResults:
    parents = {parent for row in rows for parent in row.depends_on or ()}
    lanes, retention_now = group_by_lane(parents, lambda job_id: job_id), infra.retention_now()
    sizes = {
        size.id: size
        for lane, ids in lanes.items()
        for size in await store.parent_sizes(infra.db, lane, ids, retention_now)
    }
    fitting = choose_results(rows, sizes, infra.settings.max_batch_bytes)
    results: dict[UUID, str | None] = {}
    for lane, ids in group_by_lane(set().union(*fitting.values()), lambda job_id: job_id).items():
        results |= await store.results(infra.db, lane, ids, retention_now)
    return {
        row.id: [
            _parent_result(parent, sizes, results, fits=parent in fitting[row.id]) for parent in row.depends_on or ()
        ]
        for row in rows
    }


def choose_results(
    rows: Sequence[ClaimedRow], sizes: Mapping[UUID, ParentSize], max_bytes: int
) -> dict[UUID, set[UUID]]:
    """Returns, for each claimed job, the parents whose results fit into the response.

    If not all results fit, the results for the first jobs take precedence.
    """
    chosen: dict[UUID, set[UUID]] = {row.id: set() for row in rows}
    for row in rows:
        for parent in row.depends_on or ():
            size = sizes[parent].result_bytes if parent in sizes else None
            if size is not None and size <= max_bytes:
                max_bytes -= size
                chosen[row.id].add(parent)
    return chosen


def _parent_result(
    parent: UUID, sizes: Mapping[UUID, ParentSize], results: Mapping[UUID, str | None], *, fits: bool
) -> ParentResult:
    if parent not in sizes:
        return ParentResult(job_id=parent, state="gone")
    is_omitted = sizes[parent].result_bytes is not None and not fits
    return ParentResult(
        job_id=parent,
        state=sizes[parent].state,
        result=raw_or_unset(results.get(parent) if fits else None),
        result_omitted=True if is_omitted else UNSET,
    )
