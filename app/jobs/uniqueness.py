"""Unique keys: who asks for a key that a job has already gets that job, or a refusal, or gives it another body.

Strong, not best effort: the rows of the keys are locked, in their order, until the jobs that take them are stored.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.lanes import KEY_LANES, lane_of, spread
from app.db.pool import Runs
from app.errors import DuplicateJob, Fault
from app.jobs import store
from app.jobs.entries import Entry
from app.jobs.schemas import OnDuplicate
from app.keys import store as keys
from app.keys.store import UniqueRow
from app.queues.registry import Queues
from app.web.shapes import given

LOOK_AGAIN = timedelta(days=1)  # a key that a living job holds is looked at after this long by the chore that forgets keys
WINDOW, LIFE = "window", "life"


async def judge(on: Runs, entries: Sequence[Entry], queues: Queues, now: datetime) -> None:
    """Marks each entry that is a duplicate with the job that is there, and does what it asks to be done then."""
    keyed = [entry for entry in entries if entry.unique is not None]
    held = await _hold(on, {entry.unique_digest for entry in keyed}, now)
    first: dict[UUID, Entry] = {}
    for entry in keyed:
        digest = entry.unique_digest
        if digest in first:
            _meet(first[digest], entry)
        elif (existing := await _holder(on, held[digest], now)) is not None:
            await _yield_to(on, existing, entry, queues, now)
        else:
            first[digest] = entry


async def give(on: Runs, entries: Iterable[Entry], now: datetime) -> None:
    """The keys of those that come in are theirs."""
    lanes: dict[int, dict[UUID, tuple[UUID, UUID, str, datetime]]] = {}
    for entry in entries:
        if entry.unique is not None and entry.comes_in:
            digest = entry.unique_digest
            seconds = given(entry.unique.for_seconds, None)
            held = (LIFE, now + LOOK_AGAIN) if seconds is None else (WINDOW, now + timedelta(seconds=seconds))
            lanes.setdefault(spread(digest, KEY_LANES), {})[digest] = (digest, entry.row.id, *held)
    for lane, given_keys in sorted(lanes.items()):
        await keys.give_unique(on, lane, sorted(given_keys.values()))


async def _hold(on: Runs, digests: Iterable[UUID], now: datetime) -> dict[UUID, UniqueRow]:
    lanes: dict[int, list[UUID]] = {}
    for digest in sorted(digests):
        lanes.setdefault(spread(digest, KEY_LANES), []).append(digest)
    return {row.digest: row for lane, some in sorted(lanes.items()) for row in await keys.hold_unique(on, lane, some, now + LOOK_AGAIN)}


async def _holder(on: Runs, key: UniqueRow, now: datetime) -> UUID | None:
    """The job that has the key: within its window if it is kept anywhere at all, otherwise while it waits or runs."""
    if key.job_id is None or (key.answer == WINDOW and key.expires_at <= now):
        return None
    if key.answer == WINDOW:
        return key.job_id if await store.find(on, key.job_id) else None
    return key.job_id if await store.live_jobs(on, lane_of(key.job_id), [key.job_id]) else None


async def _yield_to(on: Runs, existing: UUID, entry: Entry, queues: Queues, now: datetime) -> None:
    assert entry.unique is not None
    if entry.unique.on_duplicate is OnDuplicate.REJECT:
        entry.problem = _refusal(existing, entry)
        return
    entry.existing = existing
    if entry.unique.on_duplicate is OnDuplicate.REPLACE:
        parks = queues.parks(lane_of(existing))
        entry.replaced = await store.replace_waiting(on, existing, entry.row, now=now, parks=parks)


def _meet(first: Entry, second: Entry) -> None:
    """Two of one call ask for the same key: the second finds the first, which is not stored yet."""
    assert second.unique is not None
    if second.unique.on_duplicate is OnDuplicate.REJECT:
        second.problem = _refusal(first.row.id, second)
        return
    second.existing = first.row.id
    if second.unique.on_duplicate is OnDuplicate.REPLACE:
        kept = first.row._asdict()
        keeps = {name: kept[name] for name in ("id", "group_key", "schedule", "on_parent_failure", "awaited", "awaits", "depends_on")}
        if first.row.state == "blocked":
            keeps |= {"state": "blocked", "reason": first.row.reason}
        first.row = second.row._replace(**keeps)


def _refusal(existing: UUID, entry: Entry) -> DuplicateJob:
    return DuplicateJob(existing, [Fault(f"{entry.at}/unique/key", DuplicateJob.code, f"job {existing} has the key")])
