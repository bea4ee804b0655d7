"""How leases end: what workers say (complete, fail, snooze, release) and what the broker does itself (undo, reclaim, expire)."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import UUID

from asyncpg.pgproto import pgproto

from app.concurrency.group_scheduler import GroupScheduler
from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.lanes import by_lane, lane_of
from app.db.pool import Executor, for_each, retry_after_deadlock, uses_reserved_connections
from app.errors import LeaseLost, NotFound
from app.http.authorization import Access
from app.http.schema_types import UNSET, text_of, value_or
from app.jobs.reader import FINISHED
from app.jobs.signals import Signals
from app.jobs.store import public_state
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.retry_decision import AT_ONCE, TIMED_OUT, LeaseEnd, RetryDecision, decide, stored_error
from app.leases.schemas import Outcome, Scope, Settlement, SettleResult
from app.leases.store import SettledRow, SettlementRecord
from app.leases.to_response import not_found, repeated_settle_result, settle_result
from app.leases.validation import check, check_all
from app.locks import store as keys
from app.queues.cache import QueueCache

_NO_TOKEN = UUID(int=0)  # a token that was never given out
_DECIDE_AGAIN = 3  # a cancel or a heartbeat may come between judging and writing
GRACE = timedelta(
    seconds=1
)  # after a run's deadline: a worker that asks within it hears that it should stop, and may still settle


class SettlementService:
    def __init__(
        self,
        infra: Infrastructure,
        queues: QueueCache,
        signals: Signals,
        times: DurationHistogram,
        group_scheduler: GroupScheduler,
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._signals = signals
        self._times = times
        self._group_scheduler = group_scheduler
        self._settled_as = {outcome: infra.metrics.settled.labels(outcome.value) for outcome in Outcome}
        self._completions = Batcher("complete", self._complete_together, infra.settings.acquire_timeout_seconds, len)

    @uses_reserved_connections
    async def settle(self, items: Sequence[Settlement], access: Access, at: str = "/items") -> list[SettleResult]:
        """One result per item, in their order. A job named twice is settled by the first; the second hears what became of it."""
        check_all(items, self._infra.settings, at)
        told: dict[int, SettleResult] = {}  # by the item itself: those about one job differ
        if not access.everything:
            reached = await self._queues.visible_to((item.job_id for item in items), access)
            told = {id(item): not_found(item) for item in items if item.job_id not in reached}
        left = [item for item in items if id(item) not in told]
        while left:
            lanes: dict[int, dict[int, Settlement]] = {}
            for item in left:
                lanes.setdefault(lane_of(item.job_id), {}).setdefault(item.job_id.int, item)
            for lane, first in sorted(lanes.items()):
                told |= zip(map(id, first.values()), await self._settle_lane(lane, list(first.values())), strict=True)
            left = [item for item in left if id(item) not in told]
        return [told[id(item)] for item in items]

    @uses_reserved_connections
    async def settle_one(self, item: Settlement) -> SettleResult:
        """The same for one job: a lost lease is an error here, as there is nothing else to tell."""
        check(item, self._infra.settings)
        (result,) = await self._settle_lane(lane_of(item.job_id), [item])
        if result.status == "not_found":
            raise NotFound(f"no job {item.job_id}")
        if result.status == "lease_lost":
            raise LeaseLost(item.job_id, value_or(result.state, ""), value_or(result.attempt, 0))
        return result

    @uses_reserved_connections
    async def end(self, endings: Sequence[LeaseEnd]) -> list[SettledRow]:
        """The broker's own endings; those that have been overtaken are left out."""
        lanes = by_lane(endings, attrgetter("job_id"))
        return [row for rows in await for_each(lanes.items(), lambda item: self._end_lane(*item)) for row in rows]

    async def _settle_lane(self, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        """Each about another job."""
        completed = [item for item in items if item.outcome is Outcome.COMPLETE]
        ended = [item for item in items if item.outcome is not Outcome.COMPLETE]
        done = await self._completions.add(lane, completed) if completed else {}
        self._settled_as[Outcome.COMPLETE].inc(len(done))
        if ended:
            rows = await self._end_lane(lane, [_ending(item) for item in ended if not _of_group(item)])
            rows += await self._end_with_groups(lane, [item for item in ended if _of_group(item)])
            done |= _by_number(rows)
            for item in ended:
                self._settled_as[item.outcome].inc(item.job_id.int in done)
        missed = sorted(item.job_id for item in items if item.job_id.int not in done) if len(done) < len(items) else ()
        traces = (
            await store.settlement_records(self._infra.db, lane, missed, self._infra.retention_now()) if missed else {}
        )
        return [
            settle_result(row)
            if (row := done.get(item.job_id.int)) is not None
            else self._missed(item, traces.get(item.job_id))
            for item in items
        ]

    @uses_reserved_connections
    async def _complete_together(
        self, lane: int, calls: Sequence[Sequence[Settlement]]
    ) -> Sequence[dict[int, SettledRow]]:
        """To each what became of its own, by the number of the job. Of calls about the same job one comes first. Those with the same token
        are then about a job that is done; others may have the right one."""
        items = [item for call in calls for item in call]
        first = {item.job_id.int: item for item in reversed(items)}
        done = _by_number(await self._complete(lane, list(first.values())))
        told = [
            {number: done[number] for item in call if first[number := item.job_id.int] is item and number in done}
            for call in calls
        ]
        if len(first) < len(items):
            others = [
                [item for item in call if item.lease_token != first[item.job_id.int].lease_token] for call in calls
            ]
            if any(others):
                told = [
                    some | more for some, more in zip(told, await self._complete_together(lane, others), strict=True)
                ]
        return told

    async def finish(self) -> None:
        await self._completions.finish()

    async def _complete(self, lane: int, items: Sequence[Settlement]) -> list[SettledRow]:
        now = self._infra.now()
        sent = [(item.job_id, token_of(item.lease_token), text_of(item.result)) for item in sorted(items, key=_place)]
        rows = await store.complete(self._infra.db, lane, sent, now, *self._queues.retention(lane, now))
        self._times.record(lane, "run", [row.ran for row in rows if row.ran is not None])
        self._tell(lane, rows)
        return rows

    @retry_after_deadlock
    async def _end_with_groups(self, lane: int, items: Sequence[Settlement]) -> list[SettledRow]:
        """The downstream of a group has said that it has enough, and for how long. Together with the failure, and behind the gate: nobody
        decides in between, and a call that is repeated finds both done or neither."""
        if not items:
            return []
        await self._queues.load([lane])  # in the transaction that would need a second connection
        async with self._infra.db.transaction() as transaction:
            await keys.lock_lane(transaction, lane)
            rows = await self._end_on(transaction, lane, [_ending(item) for item in items])
            rests = _rests(items, {row.id: row for row in rows}, self._infra.now())
            if rests:
                await self._group_scheduler.rest(transaction, lane, rests)
        self._tell(lane, rows)
        if rests:
            await self._infra.versions.tell()
        return rows

    async def _end_lane(self, lane: int, endings: Sequence[LeaseEnd]) -> list[SettledRow]:
        rows = await self._end_on(self._infra.db, lane, endings)
        self._tell(lane, rows)
        return rows

    async def _end_on(self, on: Executor, lane: int, endings: Sequence[LeaseEnd]) -> list[SettledRow]:
        ended: list[SettledRow] = []
        left = {lease_end.job_id: lease_end for lease_end in endings}
        for _ in range(_DECIDE_AGAIN):
            decisions = await self._judge(on, lane, list(left.values())) if left else []
            if not decisions:
                break
            rows = await self._carry_out(on, lane, decisions)
            ended += rows
            for row in rows:
                del left[row.id]
        return ended

    async def _judge(self, on: Executor, lane: int, endings: Sequence[LeaseEnd]) -> list[RetryDecision]:
        now = self._infra.now()
        wanted = {lease_end.job_id: lease_end for lease_end in endings}
        ids = sorted(wanted)
        rows = await store.get_leases(on, lane, ids, [wanted[job_id].token for job_id in ids])
        decisions = []
        for row in sorted(rows):
            lease_end = wanted[row.id]
            overdue = row.lease_expires_at is not None and row.lease_expires_at <= now
            if lease_end.outcome in ("undo", "reclaim", "expire") and row.state != "running":
                continue
            if (lease_end.outcome == "expire" and not overdue) or (
                lease_end.outcome == "reclaim" and row.missing_since is None
            ):
                continue  # a heartbeat came first
            if (
                lease_end.outcome == "expire"
                and row.deadline_at is not None
                and row.deadline_at == row.lease_expires_at
            ):
                if now < row.deadline_at + GRACE:
                    continue
                lease_end = replace(lease_end, outcome="timeout", error=TIMED_OUT)
            decisions.append(decide(row, lease_end, self._infra.settings, now, random.uniform(-1, 1)))
        return decisions

    async def _carry_out(self, on: Executor, lane: int, decisions: Sequence[RetryDecision]) -> list[SettledRow]:
        now = self._infra.now()
        stay = [decision[:-2] for decision in decisions if decision.next_state in ("ready", "scheduled")]
        dead = [decision.dead_letter_row for decision in decisions if decision.next_state == "dead"]
        over = [decision.cancelled_row for decision in decisions if decision.next_state == "cancelled"]
        rows = await self._put_back(on, lane, stay) if stay else []
        rows += await store.move_to_dead_letters(on, lane, dead, now) if dead else []
        rows += await store.finish_cancelled(on, lane, over, now, *self._queues.retention(lane, now)) if over else []
        return rows

    async def _put_back(self, on: Executor, lane: int, rows: Sequence[tuple[object, ...]]) -> list[SettledRow]:
        await self._queues.load([lane])
        strict = self._queues.by_lane(lane).per_group == 1
        held_groups, resting = self._queues.held_groups(lane), self._queues.resting.get(lane)
        return await store.requeue(on, lane, rows, strict=strict, held_groups=held_groups, resting=resting)

    def served(self, lane: int, group_scheduler: Iterable[tuple[str | None, int | None]]) -> None:
        """Jobs of these groups have begun, or ended, in these turns."""
        self._group_scheduler.served(lane, group_scheduler)

    def _tell(self, lane: int, rows: Sequence[SettledRow]) -> None:
        if not rows:
            return
        self.served(lane, ((row.group_key, row.turn) for row in rows))
        back = [row for row in rows if row.state not in FINISHED]
        if back:
            self._signals.moved(lane, back, since=min(row.id for row in back))
        self._signals.left(lane, {row.group_key for row in rows})
        self._signals.finished(row.id for row in rows if row.state in FINISHED)
        if any(row.awaited for row in rows):
            self._signals.ended()
        if self._queues.counts_leases(lane):
            self._signals.ready(lane, [None] * len(rows))  # a freed slot

    def _missed(self, item: Settlement, trace: SettlementRecord | None) -> SettleResult:
        if trace is None:
            return not_found(item)
        used_for = (trace.settled_as or "").removesuffix(f" {AT_ONCE}")
        if trace.lease_token == token_of(item.lease_token) and used_for == item.outcome:
            return repeated_settle_result(trace)
        self._infra.metrics.lost.inc()
        return SettleResult(
            job_id=item.job_id, status="lease_lost", state=public_state(trace.state), attempt=trace.attempt
        )


def _by_number(rows: Iterable[SettledRow]) -> dict[int, SettledRow]:
    """Python finds a number five times faster than a UUID."""
    return {row.id.int: row for row in rows}


def _place(item: Settlement) -> int:
    """In the order of locks. As a number: Python compares those ten times faster than UUIDs."""
    return item.job_id.int


def token_of(text: str) -> UUID:
    """A token is opaque: what is not one of ours is lost, not an error. The driver's UUID is quicker to make and to send than Python's."""
    try:
        return pgproto.UUID(text)
    except ValueError:
        return _NO_TOKEN


def _of_group(item: Settlement) -> bool:
    return item.scope is Scope.GROUP and item.outcome is Outcome.FAIL


def _rests(items: Sequence[Settlement], done: dict[UUID, SettledRow], now: datetime) -> dict[str, datetime]:
    """By group: until when. As long as the job itself is put off, or as was asked for; the longest counts."""
    rests: dict[str, datetime] = {}
    for item in items:
        row = done.get(item.job_id)
        if row is None or row.group_key is None:
            continue
        until = row.run_at or now + timedelta(seconds=value_or(item.retry_after_seconds, 0))
        rests[row.group_key] = max(until, rests.get(row.group_key, until))
    return rests


def _ending(item: Settlement) -> LeaseEnd:
    return LeaseEnd(
        job_id=item.job_id,
        token=token_of(item.lease_token),
        outcome=item.outcome.value,  # type: ignore[arg-type]
        error=None if item.error is UNSET else stored_error(item.error),
        retryable=value_or(item.retryable, True),
        delay_seconds=value_or(item.retry_after_seconds if item.outcome is Outcome.FAIL else item.delay_seconds, None),
        checkpoint=text_of(item.checkpoint),
    )
