"""Lists, groups, replays and purges dead letters."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from asyncpg import Record

from app.db.infrastructure import Infrastructure
from app.db.lanes import LANES_PER_QUEUE, batches_by_lane, group_by_lane, lane_of
from app.dead_letters import listing, store
from app.dead_letters.listing import DeadLetterRow, GroupPosition
from app.dead_letters.replay import DeadLetterReplayer
from app.dead_letters.schemas import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    GroupField,
    PurgeAnswer,
    PurgeDeadLetters,
    ReplayAnswer,
    ReplayDeadLetters,
    ReplayOverrides,
)
from app.errors import NotFound, ValidationFailed
from app.http import instants
from app.http.authorization import Access
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.schema_types import UNSET, unset_if_none, value_or
from app.jobs import store as jobs
from app.jobs.bulk_filter import bulk_filter
from app.jobs.reader import JobReader
from app.jobs.schemas import Job
from app.log import log
from app.queues.cache import QueueCache

SAMPLE_SIZE = 20
PURGE_BATCH_SIZE = 10_000  # ids that one query finds
PURGE_STATEMENT_SIZE = 1000  # dead letters that one statement deletes
_NO_FILTER = DeadLetterFilter()


class DeadLetterService:
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, reader: JobReader, replayer: DeadLetterReplayer
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._reader = reader
        self._replayer = replayer

    async def page(
        self, filters: DeadLetterFilter, page: PageParams, access: Access, *, payload: bool
    ) -> EncodedPage[DeadLetter]:
        queues = await self._accessible_queue_ids(filters, access, "/query")
        max_bytes = self._infra.settings.max_list_bytes
        rows, total = await listing.list_dead_letters(
            self._infra.read_connections,
            filters,
            queues,
            after=_after(page),
            limit=page.limit + 1,
            max_bytes=max_bytes,
            payload=payload,
        )
        await self._queues.load_lanes({row.job.lane for row in rows})
        return await encode_page(
            rows,
            lambda row: _to_response(row, self._queues.name_by_lane(row.job.lane)),
            lambda dead_letter: {"at": dead_letter.dead_at.isoformat(), "id": str(dead_letter.id)},
            limit=page.limit,
            max_bytes=max_bytes,
            total=total,
        )

    async def get(self, job_id: UUID) -> DeadLetter:
        row = await listing.get_dead_letter(self._infra.db, lane_of(job_id), job_id)
        if row is None:
            raise NotFound(f"no dead letter {job_id}")
        return _to_response(row, await self._queues.find_name(row.job.lane))

    async def groups(
        self, by: Sequence[GroupField], filters: DeadLetterFilter, page: PageParams, access: Access
    ) -> EncodedPage[DeadLetterGroup]:
        queues = await self._accessible_queue_ids(filters, access, "/query")
        after = _after_group(page)
        rows = await listing.group(self._infra.read_connections, by, filters, queues, after=after, limit=page.limit + 1)
        await self._queues.load_lanes({row["queue"] * LANES_PER_QUEUE for row in rows if "queue" in row})
        latest: datetime = after.latest if after else rows[0]["latest"] if rows else instants.FIRST
        return await encode_page(
            rows,
            self._to_group,
            lambda group: {"count": str(group.count), "sample": str(group.sample), "latest": latest.isoformat()},
            limit=page.limit,
            max_bytes=self._infra.settings.max_list_bytes,
        )

    def _to_group(self, row: Record) -> DeadLetterGroup:
        return DeadLetterGroup(
            queue=self._queues.name_by_lane(row["queue"] * LANES_PER_QUEUE) if "queue" in row else UNSET,
            job_type=unset_if_none(row.get("job_type")),
            fingerprint=unset_if_none(row.get("fingerprint")),
            count=row["count"],
            first_at=row["first_at"],
            last_at=row["last_at"],
            sample=UUID(row["sample"]),
        )

    async def replay_one(self, job_id: UUID, caller: str) -> Job:
        replayed = await self._replayer.replay([job_id], ReplayOverrides(), spread_seconds=0)
        if not replayed:
            raise NotFound(f"no dead letter {job_id}")
        log.info("dead letter replayed", job_id=str(job_id), caller=caller)
        return await self._reader.get(replayed[0])

    async def replay(self, request: ReplayDeadLetters, access: Access) -> ReplayAnswer:
        overrides = value_or(request.overrides, ReplayOverrides())
        if overrides.queue is not UNSET:
            access.check(overrides.queue, "/overrides/queue")
        matched, ids = await self._match(request, value_or(request.limit, 1000), access)
        if value_or(request.dry_run, False):
            return ReplayAnswer(matched=matched, replayed=0, remaining=matched, sample=ids[:SAMPLE_SIZE], dry_run=True)
        replayed = await self._replayer.replay(ids, overrides, spread_seconds=value_or(request.spread_seconds, 0))
        log.info("dead letters replayed", count=len(replayed), matched=matched, caller=access.caller)
        return ReplayAnswer(
            matched=matched,
            replayed=len(replayed),
            remaining=max(0, matched - len(replayed)),
            sample=replayed[:SAMPLE_SIZE],
        )

    async def purge(self, request: PurgeDeadLetters, access: Access) -> PurgeAnswer:
        matched, ids = await self._match(request, PURGE_BATCH_SIZE, access)
        if value_or(request.dry_run, True):
            return PurgeAnswer(matched=matched, purged=0, dry_run=True)
        purged = 0
        while ids:
            purged += await self.delete(ids)
            if request.ids is not UNSET:
                break
            ids = await self._next_batch(value_or(request.filter, _NO_FILTER), access)
        log.info("dead letters purged", count=purged, caller=access.caller)
        return PurgeAnswer(matched=matched, purged=purged)

    async def delete(self, ids: Sequence[UUID]) -> int:
        """Deletes dead letters, and returns how many were deleted."""
        batches = batches_by_lane(ids, PURGE_STATEMENT_SIZE)
        return sum([await store.purge(self._infra.db, lane, batch) async for lane, batch in batches])

    async def _accessible_queue_ids(self, filters: DeadLetterFilter, access: Access, pointer: str) -> list[int] | None:
        """Returns the ids of the queues to search: the requested queue, or all accessible queues.

        Returns None if no queue is requested and the caller may access every queue.
        """
        if filters.queue is not UNSET:
            access.check(filters.queue, f"{pointer}/queue")
            queue = await self._queues.find(filters.queue)
            return [queue.id] if queue else []
        if access.all_queues:
            return None
        await self._queues.load_all()
        return [queue.id for queue in self._queues.all_including_deleted() if access.allows(queue.name)]

    async def _match(
        self, request: ReplayDeadLetters | PurgeDeadLetters, limit: int, access: Access
    ) -> tuple[int, list[UUID]]:
        """Returns the number of dead letters that the request selects, and up to `limit` ids."""
        filters = bulk_filter(request, request.filter, _NO_FILTER)
        if filters is None:
            ids = await self._dead_ids(value_or(request.ids, []), access)
            return len(ids), ids[:limit]
        queues = await self._accessible_queue_ids(filters, access, "/filter")
        reads = self._infra.read_connections
        return await listing.count(reads, filters, queues), await listing.matching_ids(reads, filters, queues, limit)

    async def _next_batch(self, filters: DeadLetterFilter, access: Access) -> list[UUID]:
        return await listing.matching_ids(
            self._infra.read_connections,
            filters,
            await self._accessible_queue_ids(filters, access, "/filter"),
            PURGE_BATCH_SIZE,
        )

    async def _dead_ids(self, ids: Sequence[UUID], access: Access) -> list[UUID]:
        """Returns the requested ids that belong to dead letters which the caller may access.

        Keeps the order of the ids, and removes duplicates.
        """
        visible_ids = await self._queues.accessible_ids(ids, access)
        visible = [job_id for job_id in dict.fromkeys(ids) if job_id in visible_ids]
        lanes = group_by_lane(visible, lambda job_id: job_id)
        dead = {
            job_id for lane, lane_ids in lanes.items() for job_id in await jobs.dead_ids(self._infra.db, lane, lane_ids)
        }
        return [job_id for job_id in visible if job_id in dead]


def _to_response(row: DeadLetterRow, queue: str) -> DeadLetter:
    return DeadLetter(
        **msgspec.structs.asdict(row.job.to_response(queue)), dead_at=row.dead_at, fingerprint=row.fingerprint
    )


def _after(page: PageParams) -> tuple[datetime, UUID] | None:
    """Returns the position where the previous page ended; None for the first page.

    The id orders dead letters with the same `dead_at`.
    """
    if page.cursor is None:
        return None
    try:
        return instants.parse(page.after("at")), UUID(page.after("id"))
    except ValueError:
        raise _invalid_cursor() from None


def _after_group(page: PageParams) -> GroupPosition | None:
    if page.cursor is None:
        return None
    try:
        size, sample = int(page.after("count")), str(UUID(page.after("sample")))
        position = GroupPosition(size, sample, instants.parse(page.after("latest")))
    except ValueError:
        raise _invalid_cursor() from None
    if not 0 < size < 2**63:
        raise _invalid_cursor()
    return position


def _invalid_cursor() -> ValidationFailed:
    return ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page")
