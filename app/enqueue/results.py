"""What became of the jobs of a call: as it is told, and as an Idempotency-Key remembers it."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from app.enqueue.drafts import JobDraft
from app.errors import Fault, Problem, ValidationFailed
from app.http.problems import details
from app.http.schema_types import UNSET
from app.jobs.schemas import BatchAnswer, BatchResult

DUPLICATE = " duplicate"  # behind an id in the answer that is kept with an Idempotency-Key


class EnqueueResult(NamedTuple):
    """What became of one job of a call. Without an id it was refused."""

    job_id: UUID | None
    duplicate: bool = False
    problem: Problem | None = None


def check_all(items: Sequence[object]) -> None:
    refused = [item for item in items if isinstance(item, Problem)]
    if refused:
        raise _all_of(refused)


def _all_of(refused: Sequence[Problem]) -> Problem:
    """One problem for the whole call, with a pointer for each bad item. Items that fail alike keep their own code."""
    faults = [
        fault for problem in refused for fault in problem.faults or [Fault("/jobs", problem.code, problem.detail)]
    ]
    count = sum(max(1, problem.fault_count) for problem in refused)
    first = refused[0]
    if all(type(problem) is type(first) for problem in refused) and not isinstance(first, ValidationFailed):
        first.set_faults(faults, count)
        return first
    if len(refused) == 1:
        return first
    return ValidationFailed(
        f"{len(refused)} of the jobs are invalid; nothing was stored", faults=faults, fault_count=count
    )


def result_of(item: JobDraft | Problem) -> EnqueueResult:
    if isinstance(item, Problem):
        return EnqueueResult(None, problem=item)
    if item.problem is not None:
        return EnqueueResult(None, problem=item.problem)
    return EnqueueResult(item.row.id) if item.existing is None else EnqueueResult(item.existing, duplicate=True)


def encode_results(result_of: Sequence[EnqueueResult]) -> str:
    """As the key remembers it; `read` reads it."""
    texts = [None if one.job_id is None else f"{one.job_id}{DUPLICATE if one.duplicate else ''}" for one in result_of]
    return msgspec.json.encode(texts).decode()


decode_results = msgspec.json.Decoder(list[str | None]).decode


def replayed_job(index: int, text: str | None, item: JobDraft | Problem) -> EnqueueResult:
    """What was refused when its key was first used stays refused, even if it would be taken now."""
    if text is None and isinstance(item, Problem):
        return EnqueueResult(None, problem=item)
    if text is None:
        return EnqueueResult(
            None, problem=ValidationFailed.at(f"/jobs/{index}", "refused when this key was first used")
        )
    return EnqueueResult(UUID(text.removesuffix(DUPLICATE)), duplicate=text.endswith(DUPLICATE))


def to_response(result_of: Sequence[EnqueueResult], request_id: str, *, atomic: bool) -> BatchAnswer:
    results = [_result(index, one, request_id) for index, one in enumerate(result_of)]
    duplicates, refused = sum(one.duplicate for one in result_of), sum(one.job_id is None for one in result_of)
    created = len(result_of) - duplicates - refused
    return BatchAnswer(results=results, created=created, duplicates=duplicates, rejected=UNSET if atomic else refused)


def _result(index: int, result_of: EnqueueResult, request_id: str) -> BatchResult:
    if result_of.job_id is not None:
        return BatchResult(
            index=index, status="duplicate" if result_of.duplicate else "created", job_id=result_of.job_id
        )
    assert result_of.problem is not None
    return BatchResult(index=index, status="rejected", problem=details(result_of.problem, request_id))
