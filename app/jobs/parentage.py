"""Jobs that wait for other jobs: their parents are marked as waited for, and what has ended already is taken as it ended."""

from collections.abc import Sequence
from uuid import UUID

from app.db.lanes import by_lane
from app.db.pool import Runs
from app.dependencies import graph, store
from app.errors import ValidationFailed
from app.jobs.entries import Entry
from app.jobs.store import NewJob, array_of

WAITING = "waiting_for_jobs"


async def settle(on: Runs, entries: Sequence[Entry]) -> list[Entry]:
    """Before the jobs are stored: whom they really wait for. Gives those that cannot run, as a parent has died or was cancelled."""
    _follow(entries)
    strangers = {parent for entry in entries if entry.comes_in for parent in entry.parents} - {entry.row.id for entry in entries}
    living, ended = await _look(on, strangers)
    _refuse(entries, strangers - living - ended.keys())
    doomed = [entry for entry in entries if entry.comes_in and _wait(entry, ended)]
    awaited = {parent for entry in entries if entry.comes_in for parent in entry.parents}
    for entry in entries:
        if entry.row.id in awaited:
            entry.row = entry.row._replace(awaited=True)
    return doomed


def _follow(entries: Sequence[Entry]) -> None:
    """A parent of the same call may have found its unique key taken: then the job that has it is the parent."""
    elsewhere = {entry.row.id: entry.existing for entry in entries if entry.existing is not None}
    for entry in entries:
        if not elsewhere.keys().isdisjoint(entry.parents):
            entry.parents = list(dict.fromkeys(elsewhere.get(parent) or parent for parent in entry.parents))
            entry.row = entry.row._replace(depends_on=array_of(entry.parents))
    places = {entry.row.id: entry.at for entry in entries if entry.comes_in}
    if not places.keys().isdisjoint(elsewhere.values()):  # two refs have become one job: that can close a circle
        named = {entry.at: [places[parent] for parent in entry.parents if parent in places] for entry in entries if entry.comes_in}
        graph.check_no_cycle(named, {place: place for place in named})


def _refuse(entries: Sequence[Entry], unknown: set[UUID]) -> None:
    """Who waits for a job that is not there is refused; and who waits for one that was refused, and so on."""
    children: dict[UUID, list[Entry]] = {}
    for entry in entries:
        if entry.comes_in:
            entry.problem = unknown_parent(entry, unknown)
            for parent in entry.parents:
                children.setdefault(parent, []).append(entry)
    refused = [entry for entry in entries if entry.problem is not None]
    while refused:
        for child in children.get(refused.pop().row.id, ()):
            if child.problem is None:
                child.problem = ValidationFailed.at(f"{child.at}/depends_on", "a job that it depends on was refused", "refused_parent")
                refused.append(child)


def _wait(entry: Entry, ended: dict[UUID, str]) -> bool:
    """For those that have not ended yet. True: for nobody, as it is to be cancelled with one that has."""
    failed = any(ended.get(parent) in ("dead", "cancelled") for parent in entry.parents)
    entry.parents = [parent for parent in entry.parents if parent not in ended]
    entry.row = _waiting(entry.row, entry.parents)
    return failed and entry.row.on_parent_failure == "cancel"


async def write_down(on: Runs, entries: Sequence[Entry]) -> None:
    """After the jobs are stored."""
    pairs = [(parent, entry.row.id) for entry in entries if entry.comes_in for parent in entry.parents]
    for lane, some in by_lane(pairs, lambda pair: pair[0]).items():
        await store.add_dependents(on, lane, [parent for parent, _ in some], [child for _, child in some])


async def _look(on: Runs, ids: set[UUID]) -> tuple[set[UUID], dict[UUID, str]]:
    """Those that live, which cannot end before our commit; and how the others have ended."""
    living: set[UUID] = set()
    ended: dict[UUID, str] = {}
    for lane, some in by_lane(ids, lambda job_id: job_id).items():
        living |= set(await store.await_parents(on, lane, some))
        others = [job_id for job_id in some if job_id not in living]
        ended |= await store.ended_parents(on, lane, others) if others else {}
    return living, ended


def unknown_parent(entry: Entry, unknown: set[UUID]) -> ValidationFailed | None:
    for parent in entry.parents:
        if parent in unknown:
            return ValidationFailed.at(f"{entry.at}/depends_on", f"there is no job {parent}", "unknown_job")
    return None


def _waiting(row: NewJob, parents: Sequence[UUID]) -> NewJob:
    """When the last parent has completed, its own time counts."""
    if not parents:
        return row
    return row._replace(state="blocked", reason=WAITING, awaits=array_of(parents))
