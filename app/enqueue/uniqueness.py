"""Unique keys: a new job is a duplicate if another job already has its unique key.

`on_duplicate` of the new job decides:

    return_existing   the call returns the existing job
    reject            the new job is rejected
    replace           the existing job gets the body of the new job, if the existing job is waiting

Two jobs never have the same key at the same time, even if calls are concurrent: the rows of the
keys are locked, in lock order, until the jobs that get the keys are committed.
"""

from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.lanes import KEY_LANES, group_by_lane, lane_of_key
from app.db.pool import Executor
from app.dependencies import store as dependencies
from app.enqueue.drafts import JobDraft
from app.enqueue.schemas import OnDuplicate
from app.errors import DuplicateJob, Fault
from app.http.schema_types import value_or
from app.jobs import store
from app.locks import store as locks
from app.locks.store import UniqueKeyParams, UniqueRow
from app.queues.cache import QueueCache

# If a key lasts as long as its job, the cleaner checks after this time whether the job is live.
RECHECK_AFTER = timedelta(days=1)
# How long a job has its key: for a given time (`for_seconds`), or while the job waits or runs.
WINDOW, LIFE = "window", "life"


async def find_duplicates(
    db: Executor,
    drafts: Sequence[JobDraft],
    queues: QueueCache,
    now: datetime,
    *,
    window_now: datetime,
    retention_now: datetime,
) -> None:
    """Locks the unique keys of the drafts, and marks the drafts that are duplicates.

    A draft is a duplicate if a stored job or an earlier draft has its key. A duplicate with
    `on_duplicate: reject` is rejected. A stored job no longer has its key

    - with `for_seconds`, if this time has ended by `window_now`, or if the job is no longer stored
      or its retention has ended by `retention_now`;
    - without `for_seconds`, if the job no longer waits or runs.
    """
    keyed = [draft for draft in drafts if draft.unique is not None]
    holders = await _find_holders(
        db, await _lock_keys(db, {draft.unique_digest for draft in keyed}, now), window_now, retention_now
    )
    first: dict[UUID, JobDraft] = {}
    for draft in keyed:
        digest = draft.unique_digest
        if digest in first:
            _mark_duplicate_in_batch(first[digest], draft, queues)
        elif digest in holders:
            _mark_duplicate(holders[digest], draft)
        else:
            first[digest] = draft


async def replace(db: Executor, drafts: Sequence[JobDraft], queues: QueueCache, now: datetime) -> None:
    """Gives each existing job the body of the duplicate that replaces it, in lock order.

    If two duplicates replace the same job, the later one wins.
    """
    replacements = [draft for draft in drafts if draft.replaces]
    for lane, lane_drafts in group_by_lane(replacements, lambda draft: draft.job_id).items():
        for draft in lane_drafts:
            held_groups = queues.held_groups(lane)
            draft.record_replaced(
                await store.replace_waiting(db, draft.job_id, draft.row, now=now, held_groups=held_groups)
            )


def propagate_rejections(drafts: Sequence[JobDraft]) -> None:
    """Rejects a duplicate of a job of the same call if that job was rejected.

    There is no existing job that the call could return for such a duplicate.
    """
    rejected = {draft.row.id: draft.problem for draft in drafts if draft.problem is not None}
    for draft in drafts:
        if draft.existing in rejected:
            draft.reject(rejected[draft.existing])


async def assign_keys(db: Executor, drafts: Iterable[JobDraft], now: datetime) -> None:
    """Stores which inserted job has which unique key, and for how long."""
    lanes: dict[int, dict[UUID, UniqueKeyParams]] = {}
    for draft in drafts:
        if draft.unique is not None and draft.accepted:
            digest = draft.unique_digest
            seconds = value_or(draft.unique.for_seconds, None)
            held_for, ends_after = (LIFE, RECHECK_AFTER) if seconds is None else (WINDOW, timedelta(seconds=seconds))
            params = UniqueKeyParams(digest, draft.row.id, held_for, now + ends_after)
            lanes.setdefault(lane_of_key(digest, KEY_LANES), {})[digest] = params
    for lane, assignments in sorted(lanes.items()):
        await locks.assign_unique_keys(db, lane, sorted(assignments.values()))


async def _lock_keys(db: Executor, digests: Iterable[UUID], now: datetime) -> list[UniqueRow]:
    lanes: dict[int, list[UUID]] = {}
    for digest in sorted(digests):
        lanes.setdefault(lane_of_key(digest, KEY_LANES), []).append(digest)
    return [
        row
        for lane, lane_digests in sorted(lanes.items())
        for row in await locks.lock_unique_keys(db, lane, lane_digests, now + RECHECK_AFTER)
    ]


async def _find_holders(
    db: Executor, rows: Sequence[UniqueRow], window_now: datetime, retention_now: datetime
) -> dict[UUID, UUID]:
    """Maps the digest of each key in use to the job that has the key.

    With `for_seconds` a job has its key for that time, but only as long as the job is stored: live,
    finished or dead. Without `for_seconds` a job has its key while it waits or runs.
    """
    holders = {
        key.digest: key.job_id
        for key in rows
        if key.job_id is not None and (key.response == LIFE or key.expires_at > window_now)
    }
    window_ids = {key.job_id for key in rows if key.response == WINDOW and key.digest in holders}
    current_holders = await _find_current_holders(db, set(holders.values()), window_ids, retention_now)
    return {digest: job_id for digest, job_id in holders.items() if job_id in current_holders}


async def _find_current_holders(
    db: Executor, ids: set[UUID], window_ids: Container[UUID | None], retention_now: datetime
) -> set[UUID]:
    """Returns the ids of the jobs that still have their unique keys.

    A live job has its key. A job in `window_ids` has a key with `for_seconds`, and keeps the key
    after it has finished or become dead, as long as the job is stored.
    """
    holders: set[UUID] = set()
    for lane, lane_ids in group_by_lane(ids, lambda job_id: job_id).items():
        holders |= await store.live_ids(db, lane, lane_ids)
        finished = [job_id for job_id in lane_ids if job_id in window_ids and job_id not in holders]
        if finished:
            holders |= (await dependencies.parent_states(db, lane, finished, retention_now)).keys()
    return holders


def _mark_duplicate(existing: UUID, draft: JobDraft) -> None:
    """Marks the draft as a duplicate of a stored job, or with `on_duplicate: reject` rejects it."""
    assert draft.unique is not None
    if draft.unique.on_duplicate is OnDuplicate.REJECT:
        draft.reject(_rejection(existing, draft))
        return
    draft.become_duplicate(existing, replaces=draft.unique.on_duplicate is OnDuplicate.REPLACE)


def _mark_duplicate_in_batch(first: JobDraft, second: JobDraft, queues: QueueCache) -> None:
    """Marks or rejects the second of two jobs of one call that have the same unique key.

    `on_duplicate` of the second job decides:

    - `reject`: the second job is rejected.
    - `return_existing`: the second job becomes a duplicate of the first.
    - `replace`: the same, and the first job, which is not stored yet, gets the body of the second.
    """
    assert second.unique is not None
    if second.unique.on_duplicate is OnDuplicate.REJECT:
        second.reject(_rejection(first.row.id, second))
        return
    second.become_duplicate(first.row.id, replaces=False)
    if second.unique.on_duplicate is OnDuplicate.REPLACE:
        kept_fields = ("id", "group_key", "schedule", "on_parent_failure", "depends_on")
        kept = {name: getattr(first.row, name) for name in kept_fields}
        # The first job stays in its group, so its own group decides whether it needs an admission.
        due = "pending" if queues.needs_admission(first.queue, first.lane, first.row.group_key) else "ready"
        state = due if second.row.state != "scheduled" else "scheduled"
        first.change_row(**second.row._replace(**kept, state=state)._asdict())


def _rejection(existing: UUID, draft: JobDraft) -> DuplicateJob:
    return DuplicateJob(
        existing, [Fault(f"{draft.pointer}/unique/key", DuplicateJob.code, f"job {existing} already has this key")]
    )
