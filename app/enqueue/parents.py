"""Jobs that wait for other jobs: their parents are marked as waited for, and what has ended already is taken as it ended."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from uuid import UUID

from app.db.lanes import by_lane
from app.db.pool import Executor
from app.dependencies import graph, store
from app.enqueue.drafts import JobDraft
from app.errors import ValidationFailed
from app.jobs.store import NewJob, to_array_text
from app.slices import in_slices

WAITING = "waiting_for_jobs"
PAIRS = 5000  # pairs of parent and child per statement: the driver takes a few milliseconds to encode them
CHUNK_BYTES = 2 * 1024 * 1024


async def resolve_parents(on: Executor, entries: Sequence[JobDraft], kept_at: datetime) -> list[JobDraft]:
    """Resolves the parents before the jobs are stored. Returns the jobs that cannot run, because a parent has died or was cancelled.
    Finished parents whose retention has ended by `kept_at` count as removed."""
    await _follow(entries)
    stored = await _parents(entries) - {entry.row.id for entry in entries}
    living, ended = await _look(on, stored, kept_at)
    await _refuse(entries, stored - living - ended.keys())
    doomed = [entry async for entry in in_slices(entries) if entry.accepted and _wait(entry, ended)]
    awaited = await _parents(entries)
    for entry in entries:
        if entry.row.id in awaited:
            entry.row = entry.row._replace(awaited=True)
    return doomed


async def _parents(entries: Sequence[JobDraft]) -> set[UUID]:
    """The parents of all jobs that will be inserted."""
    return {parent async for entry in in_slices(entries) if entry.accepted for parent in entry.parents}


async def _follow(entries: Sequence[JobDraft]) -> None:
    """A parent of the same call may have found its unique key taken: then the job that has it is the parent."""
    elsewhere = {entry.row.id: entry.existing for entry in entries if entry.existing is not None}
    if not elsewhere:
        return
    async for entry in in_slices(entries):
        if not elsewhere.keys().isdisjoint(entry.parents):
            entry.parents = list(dict.fromkeys(elsewhere.get(parent) or parent for parent in entry.parents))
            entry.row = entry.row._replace(depends_on=to_array_text(entry.parents))
    places = {entry.row.id: entry.at for entry in entries if entry.accepted}
    if not places.keys().isdisjoint(elsewhere.values()):  # two refs have become one job: that can close a circle
        coming = [entry for entry in entries if entry.accepted]
        named = {
            entry.at: [places[parent] for parent in entry.parents if parent in places]
            async for entry in in_slices(coming)
        }
        await asyncio.to_thread(graph.check_no_cycle, named, {place: place for place in named})


async def _refuse(entries: Sequence[JobDraft], unknown: set[UUID]) -> None:
    """Who waits for a job that is not there is refused; and who waits for one that was refused, and so on."""
    children: dict[UUID, list[JobDraft]] = {}
    async for entry in in_slices(entries):
        if entry.accepted:
            entry.problem = unknown_parent(entry, unknown)
            for parent in entry.parents:
                children.setdefault(parent, []).append(entry)
    refused = [entry for entry in entries if entry.problem is not None]
    while refused:
        for child in children.get(refused.pop().row.id, ()):
            if child.problem is None:
                child.problem = ValidationFailed.at(
                    f"{child.at}/depends_on", "a job that it depends on was refused", "refused_parent"
                )
                refused.append(child)


def _wait(entry: JobDraft, ended: dict[UUID, str]) -> bool:
    """For those that have not ended yet. True: for nobody, as it is to be cancelled with one that has."""
    if entry.parents and ended.keys().isdisjoint(entry.parents):
        entry.row = entry.row._replace(state="blocked", reason=WAITING, awaits=entry.row.depends_on)
        return False
    failed = any(ended.get(parent) in ("dead", "cancelled") for parent in entry.parents)
    entry.parents = [parent for parent in entry.parents if parent not in ended]
    entry.row = _waiting(entry.row, entry.parents)
    return failed and entry.row.on_parent_failure == "cancel"


async def insert_dependents(on: Executor, entries: Sequence[JobDraft]) -> None:
    """After the jobs are stored."""
    children: dict[UUID, list[UUID]] = {}
    async for entry in in_slices(entries):
        for parent in entry.parents if entry.accepted else ():
            children.setdefault(parent, []).append(entry.row.id)
    for lane, parents in by_lane(children, lambda parent: parent).items():
        pairs = ((parent, child) for parent in parents for child in children[parent])
        while portion := list(islice(pairs, PAIRS)):
            await store.add_dependents(on, lane, [parent for parent, _ in portion], [child for _, child in portion])


def chunks(rows: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Splits rows into statements of bounded size, because the driver encodes a statement in one go. A job may name a thousand parents,
    and its row has them twice."""
    if not any(row.depends_on for row in rows):
        yield rows
        return
    step = max(1, CHUNK_BYTES // max(2 * len(row.depends_on or "") for row in rows))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


async def _look(on: Executor, ids: set[UUID], kept_at: datetime) -> tuple[set[UUID], dict[UUID, str]]:
    """Those that live, which cannot end before our commit; and how the others have ended."""
    living: set[UUID] = set()
    ended: dict[UUID, str] = {}
    for lane, some in by_lane(ids, lambda job_id: job_id).items():
        living |= set(await store.mark_parents(on, lane, some))
        others = [job_id for job_id in some if job_id not in living]
        ended |= await store.finished_parents(on, lane, others, kept_at) if others else {}
    return living, ended


def unknown_parent(entry: JobDraft, unknown: set[UUID]) -> ValidationFailed | None:
    for parent in entry.parents:
        if parent in unknown:
            return ValidationFailed.at(f"{entry.at}/depends_on", f"there is no job {parent}", "unknown_job")
    return None


def _waiting(row: NewJob, parents: Sequence[UUID]) -> NewJob:
    """When the last parent has completed, its own time counts."""
    if not parents:
        return row
    return row._replace(state="blocked", reason=WAITING, awaits=to_array_text(parents))
