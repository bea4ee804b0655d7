"""Unique keys: who asks for a key that a job has already gets that job, or a refusal, or gives it another body.

Strong, not best effort: the rows of the keys are locked, in their order, until the jobs that take them are stored.
"""

from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.lanes import KEY_LANES, by_lane, lane_of_key
from app.db.pool import Executor
from app.dependencies import store as dependencies
from app.enqueue.drafts import JobDraft
from app.errors import DuplicateJob, Fault
from app.http.schema_types import value_or
from app.jobs import store
from app.jobs.schemas import OnDuplicate
from app.locks import store as keys
from app.locks.store import UniqueRow
from app.queues.cache import QueueCache

RECHECK_AFTER = timedelta(
    days=1
)  # a key that a living job holds is looked at after this long by the chore that forgets keys
WINDOW, LIFE = "window", "life"


async def find_duplicates(
    on: Executor,
    entries: Sequence[JobDraft],
    queues: QueueCache,
    now: datetime,
    *,
    ended_by: datetime,
    kept_at: datetime,
) -> None:
    """Marks each duplicate with the existing job, or rejects it if its `on_duplicate` says so. Keys whose `for_seconds` have ended by
    `ended_by` are free, and so are those of finished jobs that retention may remove at `kept_at`."""
    keyed = [entry for entry in entries if entry.unique is not None]
    holders = await _holders(on, await _lock(on, {entry.unique_digest for entry in keyed}, now), ended_by, kept_at)
    first: dict[UUID, JobDraft] = {}
    for entry in keyed:
        digest = entry.unique_digest
        if digest in first:
            _duplicate_in_batch(first[digest], entry, queues)
        elif digest in holders:
            _duplicate_of(holders[digest], entry)
        else:
            first[digest] = entry


async def replace(on: Executor, entries: Sequence[JobDraft], queues: QueueCache, now: datetime) -> None:
    """Gives jobs that are there another body, in the order of locks; of two for one job the later has the last word."""
    params = [entry for entry in entries if entry.replaces]
    for lane, some in by_lane(params, lambda entry: entry.job_id).items():
        for entry in some:
            entry.replaced = await store.replace_waiting(
                on, entry.job_id, entry.row, now=now, held_groups=queues.held_groups(lane)
            )


def propagate_rejections(entries: Sequence[JobDraft]) -> None:
    """Who found a job of the same call, and that was refused in the end, is refused with it: there is no such job."""
    refused = {entry.row.id: entry.problem for entry in entries if entry.problem is not None}
    for entry in entries:
        if entry.existing in refused:
            entry.problem = refused[entry.existing]


async def assign_keys(on: Executor, entries: Iterable[JobDraft], now: datetime) -> None:
    """The keys of those that come in are theirs."""
    lanes: dict[int, dict[UUID, tuple[UUID, UUID, str, datetime]]] = {}
    for entry in entries:
        if entry.unique is not None and entry.accepted:
            digest = entry.unique_digest
            seconds = value_or(entry.unique.for_seconds, None)
            held = (LIFE, now + RECHECK_AFTER) if seconds is None else (WINDOW, now + timedelta(seconds=seconds))
            lanes.setdefault(lane_of_key(digest, KEY_LANES), {})[digest] = (digest, entry.row.id, *held)
    for lane, given_keys in sorted(lanes.items()):
        await keys.assign_unique_keys(on, lane, sorted(given_keys.values()))


async def _lock(on: Executor, digests: Iterable[UUID], now: datetime) -> list[UniqueRow]:
    lanes: dict[int, list[UUID]] = {}
    for digest in sorted(digests):
        lanes.setdefault(lane_of_key(digest, KEY_LANES), []).append(digest)
    return [
        row
        for lane, some in sorted(lanes.items())
        for row in await keys.lock_unique_keys(on, lane, some, now + RECHECK_AFTER)
    ]


async def _holders(on: Executor, held: Sequence[UniqueRow], ended_by: datetime, kept_at: datetime) -> dict[UUID, UUID]:
    """The jobs that have these keys: within its window if it is kept anywhere at all, otherwise while it waits or runs."""
    owners = {
        key.digest: key.job_id
        for key in held
        if key.job_id is not None and (key.answer == LIFE or key.expires_at > ended_by)
    }
    windows = {key.job_id for key in held if key.answer == WINDOW and key.digest in owners}
    there = await _still_live(on, set(owners.values()), windows, kept_at)
    return {digest: job_id for digest, job_id in owners.items() if job_id in there}


async def _still_live(on: Executor, ids: set[UUID], windows: Container[UUID | None], kept_at: datetime) -> set[UUID]:
    there: set[UUID] = set()
    for lane, some in by_lane(ids, lambda job_id: job_id).items():
        there |= await store.live_ids(on, lane, some)
        ended = [job_id for job_id in some if job_id in windows and job_id not in there]
        if ended:
            there |= (await dependencies.finished_parents(on, lane, ended, kept_at)).keys()
    return there


def _duplicate_of(existing: UUID, entry: JobDraft) -> None:
    assert entry.unique is not None
    if entry.unique.on_duplicate is OnDuplicate.REJECT:
        entry.problem = _rejection(existing, entry)
        return
    entry.existing = existing
    entry.replaces = entry.unique.on_duplicate is OnDuplicate.REPLACE


def _duplicate_in_batch(first: JobDraft, second: JobDraft, queues: QueueCache) -> None:
    """Two of one call ask for the same key: the second finds the first, which is not stored yet."""
    assert second.unique is not None
    if second.unique.on_duplicate is OnDuplicate.REJECT:
        second.problem = _rejection(first.row.id, second)
        return
    second.existing = first.row.id
    if second.unique.on_duplicate is OnDuplicate.REPLACE:
        keeps = {
            name: getattr(first.row, name)
            for name in ("id", "group_key", "schedule", "on_parent_failure", "depends_on")
        }
        due = (
            "parked" if queues.needs_admission(first.lane, first.row.group_key) else "ready"
        )  # its own group counts, as it stays in it
        first.row = second.row._replace(**keeps, state=due if second.row.state != "scheduled" else "scheduled")


def _rejection(existing: UUID, entry: JobDraft) -> DuplicateJob:
    return DuplicateJob(existing, [Fault(f"{entry.at}/unique/key", DuplicateJob.code, f"job {existing} has the key")])
