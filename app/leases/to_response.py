"""Converts rows to responses: claimed jobs and results of settlements."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from app.db.clock import datetime_from_epoch
from app.db.lanes import created_at
from app.http.bodies import encode
from app.http.large_response import JsonList
from app.http.schema_types import Raw, unset_if_none
from app.jobs.rows import ClaimedRow, metadata_of, public_state, tags_of
from app.jobs.schemas import Progress
from app.leases.parent_results import ParentResults
from app.leases.rows import SettledRow, SettlementRecord
from app.leases.schemas import ClaimAnswer, Settlement, SettleResult
from app.slices import map_in_slices

_progress = msgspec.json.Decoder(Progress)
_BEFORE_JOBS = b'{"jobs":['


class PollResult(NamedTuple):
    """The result of a claim request. `answer` is the response without its jobs, which are `rows`.

    queue_names  the names of the queues of the jobs, by lane
    parents      the results of the parents; None if the request does not ask for them
    """

    rows: Sequence[ClaimedRow]
    queue_names: Mapping[int, str]
    parents: ParentResults | None
    answer: ClaimAnswer


async def encode_claim(result: PollResult) -> JsonList:
    """Encodes the response of a claim, as msgspec would encode its `ClaimAnswer`. Other requests are
    served during the encoding, which is divided into slices of time."""
    queues = {lane: _text(name) for lane, name in result.queue_names.items()}
    jobs = await map_in_slices(partial(_encode_job, queues, result.parents), result.rows)
    return JsonList(_BEFORE_JOBS, jobs, encode(result.answer).removeprefix(_BEFORE_JOBS) + b"\n")


def _encode_job(queues: Mapping[int, str], parents: ParentResults | None, row: ClaimedRow) -> bytes:
    """Encodes a claimed job, as msgspec would encode a `ClaimedJob`. `queues` has the names of the
    queues as JSON, by lane.

    Most optional members are absent, so no function is called for an absent member. A job takes
    1.3 µs; to build a `ClaimedJob` and encode it took 2.1 µs.
    """
    is_plain = row.checkpoint is row.progress is row.group_key is None and row.deadline_at is None and parents is None
    has_trace = row.traceparent is not None or row.tracestate is not None
    trace = _members(traceparent=row.traceparent, tracestate=row.tracestate) if has_trace else ""
    return (
        f'{{"id":"{row.id!s}","queue":{queues[row.lane]},"job_type":{_cached_text(row.job_type)}'
        f',"payload":{row.payload},"attempt":{row.attempt},"max_attempts":{row.max_attempts}'
        f',"deliveries":{row.deliveries},"lease_token":"{row.lease_token!s}"'
        f"{_lease_members(row.started_epoch, row.lease_seconds)}{'' if is_plain else _optional_members(row, parents)}"
        f',"tags":{"[]" if row.tags is None else _text(tags_of(row.tags))}'
        f',"metadata":{"{}" if row.metadata is None else _text(metadata_of(row.metadata))}'
        f',"created_at":{_cached_text(created_at(row.id))}{trace}}}'
    ).encode()


@lru_cache(maxsize=1000)
def _lease_members(started_epoch: float, seconds: float) -> str:
    """Encodes the members about the lease. Cached, because the jobs of a claim share them."""
    return _members(lease_expires_at=datetime_from_epoch(started_epoch + seconds), lease_seconds=round(seconds))


def _optional_members(row: ClaimedRow, parents: ParentResults | None) -> str:
    """Encodes the optional members between `lease_seconds` and `tags`."""
    return _members(
        checkpoint=None if row.checkpoint is None else Raw(row.checkpoint.encode()),
        progress=None if row.progress is None else _progress.decode(row.progress),
        group=row.group_key,
        deadline_at=row.deadline_at,
        parent_results=None if parents is None else parents[row.id],
    )


def _members(**values: object) -> str:
    """Encodes members of an object. A member whose value is None is absent."""
    return "".join(f',"{name}":{_text(value)}' for name, value in values.items() if value is not None)


def _text(value: object) -> str:
    return encode(value).decode()


@lru_cache(maxsize=10_000)
def _cached_text(value: str | datetime) -> str:
    """Encodes a job type or an instant. Cached, because the jobs of a batch share their types and
    times."""
    return _text(value)


def not_found_result(item: Settlement) -> SettleResult:
    return SettleResult(job_id=item.job_id, status="not_found")


def settle_result(row: SettledRow) -> SettleResult:
    return SettleResult(
        job_id=row.id,
        status="settled",
        state=public_state(row.state),
        attempt=row.attempt,
        run_at=unset_if_none(row.run_at),
    )


def repeated_settle_result(record: SettlementRecord) -> SettleResult:
    """Builds the result of the first settlement, for a call that repeats it.

    A failed or snoozed job that is ready by now was scheduled when it was settled, unless
    settled_as has the suffix IMMEDIATE.
    """
    state = public_state(record.state)
    state = "scheduled" if state == "ready" and record.settled_as in ("fail", "snooze") else state
    return SettleResult(
        job_id=record.id,
        status="already_settled",
        state=state,
        attempt=record.attempt,
        run_at=unset_if_none(record.run_at),
    )
