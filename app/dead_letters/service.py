"""What operators do with dead letters: look, group, replay, purge."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from app.db.infrastructure import Infrastructure
from app.db.lanes import LANES_PER_QUEUE, by_lane, lane_of
from app.db.pool import retry_after_deadlock
from app.dead_letters import listing, store
from app.dead_letters.listing import DeadLetterRow
from app.dead_letters.merge_patch import merge_patch
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
from app.dead_letters.store import RemovedRow
from app.enqueue.defaults import choose_lane
from app.errors import NotFound, ValidationFailed
from app.http import instants
from app.http.authorization import Access
from app.http.pagination import EncodedPage, PageParams, encode_page
from app.http.request_body import check_user_data
from app.http.schema_types import UNSET, Raw, UnsetType, unset_if_none, value_or
from app.jobs import store as jobs
from app.jobs.bulk_filter import bulk_filter
from app.jobs.reader import JobReader
from app.jobs.schemas import Job
from app.jobs.signals import Signals
from app.jobs.store import NewJob
from app.log import log
from app.queues.cache import MissingQueue, Queue, QueueCache
from app.queues.creator import QueueCreator
from app.slices import in_slices

SAMPLE = 20
PURGE_BATCH = 10_000
REPLAY_BATCH = 100  # dead letters per statement: with payloads they may be 25 MB
_NO_FILTER = DeadLetterFilter()


class ReplayTime(NamedTuple):
    """When a replayed job starts. What starts now is ready, even if the clock is set back by a millisecond meanwhile."""

    run_at: datetime
    state: str

    @classmethod
    def after(cls, seconds: float, now: datetime) -> "ReplayTime":
        return cls(now + timedelta(seconds=seconds), "scheduled" if seconds > 0 else "ready")


class DeadLetterService:
    def __init__(
        self, infra: Infrastructure, queues: QueueCache, creator: QueueCreator, signals: Signals, reader: JobReader
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._creator = creator
        self._signals = signals
        self._reader = reader

    async def page(
        self, wanted: DeadLetterFilter, page: PageParams, access: Access, *, payload: bool
    ) -> EncodedPage[DeadLetter]:
        queues, max_bytes = await self._reached(wanted, access, "/query"), self._infra.settings.max_list_bytes
        letters, total = await listing.list_dead_letters(
            self._infra.reads,
            wanted,
            queues,
            after=_after(page),
            limit=page.limit + 1,
            max_bytes=max_bytes,
            payload=payload,
        )
        await self._queues.load({letter.job.lane for letter in letters})
        return await encode_page(
            letters,
            lambda letter: _to_response(letter, self._queues.name(letter.job.lane)),
            lambda letter: {"at": letter.dead_at.isoformat(), "id": str(letter.id)},
            limit=page.limit,
            max_bytes=max_bytes,
            total=total,
        )

    async def get(self, job_id: UUID) -> DeadLetter:
        letters = await listing.get_dead_letter(self._infra.db, lane_of(job_id), job_id)
        if not letters:
            raise NotFound(f"no dead letter {job_id}")
        return _to_response(letters[0], await self._queues.name_of(letters[0].job.lane))

    async def groups(self, by: Sequence[GroupField], wanted: DeadLetterFilter, access: Access) -> list[DeadLetterGroup]:
        rows = await listing.group(self._infra.reads, by, wanted, await self._reached(wanted, access, "/query"))
        return [
            DeadLetterGroup(
                queue=await self._queues.name_of(row["queue"] * LANES_PER_QUEUE) if "queue" in row else UNSET,
                job_type=unset_if_none(row.get("job_type")),
                fingerprint=unset_if_none(row.get("fingerprint")),
                count=row["count"],
                first_at=row["first_at"],
                last_at=row["last_at"],
                sample=UUID(row["sample"]),
            )
            for row in rows
        ]

    async def replay_one(self, job_id: UUID) -> Job:
        revived = await self._replay([job_id], UNSET, spread_seconds=0)
        if not revived:
            raise NotFound(f"no dead letter {job_id}")
        log.info("dead letter replayed", job_id=str(job_id))
        return await self._reader.get(revived[0])

    async def replay(self, request: ReplayDeadLetters, access: Access) -> ReplayAnswer:
        overrides = value_or(request.overrides, ReplayOverrides())
        if overrides.queue is not UNSET:
            access.check(overrides.queue, "/overrides/queue")
        matched, ids = await self._matching(request, value_or(request.limit, 1000), access)
        if value_or(request.dry_run, False):
            return ReplayAnswer(matched=matched, replayed=0, remaining=matched, sample=ids[:SAMPLE], dry_run=True)
        revived = await self._replay(ids, request.overrides, spread_seconds=value_or(request.spread_seconds, 0))
        log.info("dead letters replayed", count=len(revived), matched=matched, caller=access.caller)
        return ReplayAnswer(
            matched=matched, replayed=len(revived), remaining=max(0, matched - len(revived)), sample=revived[:SAMPLE]
        )

    async def purge(self, request: PurgeDeadLetters, access: Access) -> PurgeAnswer:
        matched, ids = await self._matching(request, PURGE_BATCH, access)
        if value_or(request.dry_run, True):
            return PurgeAnswer(matched=matched, purged=0, dry_run=True)
        purged = 0
        while ids:
            purged += await self.remove(ids)
            ids = (
                []
                if request.ids is not UNSET
                else await self._next_matching(value_or(request.filter, _NO_FILTER), access)
            )
        log.info("dead letters purged", count=purged, caller=access.caller)
        return PurgeAnswer(matched=matched, purged=purged)

    async def remove(self, ids: Sequence[UUID]) -> int:
        return sum(
            [
                await store.purge(self._infra.db, lane, some)
                for lane, some in by_lane(ids, lambda job_id: job_id).items()
            ]
        )

    async def _reached(self, wanted: DeadLetterFilter, access: Access, at: str) -> list[int] | None:
        """The numbers of the queue that is asked for, or of those that the caller reaches; None: all there are."""
        if wanted.queue is not UNSET:
            access.check(wanted.queue, f"{at}/queue")
            queue = await self._queues.find(wanted.queue)
            return [queue.id] if queue else []
        if access.everything:
            return None
        await self._queues.refresh()
        return [queue.id for queue in self._queues.everything() if access.allows(queue.name)]

    async def _matching(
        self, request: ReplayDeadLetters | PurgeDeadLetters, limit: int, access: Access
    ) -> tuple[int, list[UUID]]:
        """How many match, and at most `limit` of them."""
        wanted = bulk_filter(request.ids, request.filter, request.all, _NO_FILTER)
        if wanted is None:
            ids = await self._dead(value_or(request.ids, []), access)
            return len(ids), ids[:limit]
        queues = await self._reached(wanted, access, "/filter")
        reads = self._infra.reads
        return await listing.count(reads, wanted, queues), await listing.matching_ids(reads, wanted, queues, limit)

    async def _next_matching(self, chosen: DeadLetterFilter, access: Access) -> list[UUID]:
        return await listing.matching_ids(
            self._infra.reads, chosen, await self._reached(chosen, access, "/filter"), PURGE_BATCH
        )

    async def _dead(self, ids: Sequence[UUID], access: Access) -> list[UUID]:
        """The ids of dead letters in queues that the caller may access, without duplicates, in the order of the request."""
        reached = await self._queues.visible_to(ids, access)
        visible = [job_id for job_id in dict.fromkeys(ids) if job_id in reached]
        lanes = by_lane(visible, lambda job_id: job_id)
        dead = {
            job_id for lane, lane_ids in lanes.items() for job_id in await jobs.dead_ids(self._infra.db, lane, lane_ids)
        }
        return [job_id for job_id in visible if job_id in dead]

    async def _replay(
        self, ids: Sequence[UUID], sent: ReplayOverrides | UnsetType, *, spread_seconds: int
    ) -> list[UUID]:
        overrides = value_or(sent, ReplayOverrides())
        now = self._infra.now()
        step = spread_seconds / len(ids) if ids else 0
        due = {job_id: ReplayTime.after(step * index, now) async for index, job_id in in_slices(enumerate(ids))}
        revived: list[UUID] = []
        act = self._revive if overrides.queue is UNSET else self._move
        for lane, some in by_lane(ids, lambda job_id: job_id).items():
            for start in range(0, len(some), REPLAY_BATCH):
                revived += await act(lane, some[start : start + REPLAY_BATCH], due, overrides)
        return sorted(revived, key=lambda job_id: due[job_id].run_at if job_id in due else now)

    async def _revive(
        self, lane: int, ids: Sequence[UUID], due: dict[UUID, ReplayTime], overrides: ReplayOverrides
    ) -> list[UUID]:
        payloads = await self._payloads(lane, ids, overrides.payload_merge)
        letters = [(job_id, due[job_id].state, due[job_id].run_at, payloads.get(job_id)) for job_id in ids]
        await self._queues.load([lane])
        rows = await store.replay(
            self._infra.db,
            lane,
            letters,
            priority=value_or(overrides.priority, None),
            max_attempts=value_or(overrides.max_attempts, None),
            held_groups=self._queues.held_groups(lane),
        )
        self._signals.moved(lane, rows)
        return [row.id for row in rows]

    async def _payloads(self, lane: int, ids: Sequence[UUID], patch: dict[str, Raw] | UnsetType) -> dict[UUID, str]:
        """Merged here and not in SQL, so that what is not touched stays as it was sent. A dead letter's payload does not change."""
        if isinstance(patch, UnsetType):
            return {}
        return {
            job_id: self._merged(payload, patch)
            for job_id, payload in (await store.payloads(self._infra.db, lane, ids)).items()
        }

    def _merged(self, payload: str, patch: dict[str, Raw]) -> str:
        text = merge_patch(payload, patch)
        check_user_data(Raw(text.encode()), self._infra.settings.max_payload_bytes, "/overrides/payload_merge")
        return text

    async def _move(
        self, lane: int, ids: Sequence[UUID], due: dict[UUID, ReplayTime], overrides: ReplayOverrides
    ) -> list[UUID]:
        """Into another queue: the letter goes and a new job comes, in one transaction."""
        name = value_or(overrides.queue, "default")
        try:
            return await self._move_to(self._queues.existing(name), lane, ids, due, overrides)
        except MissingQueue:
            return await self._creator.call([name], lambda find: self._move_to(find(name), lane, ids, due, overrides))

    @retry_after_deadlock
    async def _move_to(
        self, queue: Queue, lane: int, ids: Sequence[UUID], due: dict[UUID, ReplayTime], overrides: ReplayOverrides
    ) -> list[UUID]:
        async with self._infra.db.transaction() as transaction:
            letters = await store.remove(transaction, lane, ids)
            fresh = [
                self._fresh(letter, choose_lane(queue, unset_if_none(letter.group_key)), due[letter.id], overrides)
                for letter in letters
            ]
            await self._creator.store(transaction, [queue] if fresh else [])
            for target, rows in by_lane(fresh, lambda row: row.id).items():
                await jobs.enqueue(transaction, target, rows)
        if queue.is_draft:
            await self._queues.refresh()
        for target, rows in by_lane(fresh, lambda row: row.id).items():
            self._signals.moved(target, rows)
        return [row.id for row in fresh]

    def _fresh(self, letter: RemovedRow, lane: int, due: ReplayTime, overrides: ReplayOverrides) -> NewJob:
        patch = value_or(overrides.payload_merge, None)
        return NewJob(
            id=self._infra.job_ids(lane),
            state="parked"
            if due.state == "ready" and self._queues.needs_admission(lane, letter.group_key)
            else due.state,
            reason=None,
            run_at=due.run_at,
            priority=value_or(overrides.priority, letter.priority),
            max_attempts=value_or(overrides.max_attempts, letter.max_attempts),
            job_type=letter.job_type,
            group_key=letter.group_key,
            lease_seconds=letter.lease_seconds,
            retry=letter.retry,
            tags=letter.tags,
            metadata=letter.metadata,
            traceparent=letter.traceparent,
            tracestate=letter.tracestate,
            replayed_from=letter.id,
            payload=letter.payload if patch is None else self._merged(letter.payload, patch),
            timeout_seconds=letter.timeout_seconds,
        )


def _to_response(letter: DeadLetterRow, queue: str) -> DeadLetter:
    return DeadLetter(
        **msgspec.structs.asdict(letter.job.to_response(queue)), dead_at=letter.dead_at, fingerprint=letter.fingerprint
    )


def _after(page: PageParams) -> tuple[datetime, UUID] | None:
    """Where the last page ended: letters that died at the same instant are told apart by their ids."""
    if page.cursor is None:
        return None
    try:
        return instants.read(page.after("at")), UUID(page.after("id"))
    except ValueError:
        raise ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page") from None
