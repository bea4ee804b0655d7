"""Settles jobs: a worker ends its lease with one of four outcomes.

    running -> completed   complete
    running -> ...         fail, snooze, release: see lease_ender.py

A late settlement, after the lease has expired, is accepted from ready and scheduled too, unless the
job has been delivered again in the meantime.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from asyncpg.pgproto import pgproto

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of
from app.db.pool import uses_reserved_connections
from app.errors import LeaseLost, NotFound
from app.http.authorization import Access
from app.http.schema_types import UNSET, raw_to_text, value_or
from app.jobs.rows import public_state
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import IMMEDIATE, LeaseEnd, stored_error
from app.leases.rows import SettledRow, SettlementRecord
from app.leases.schemas import Outcome, Scope, Settlement, SettleResult
from app.leases.to_response import not_found, repeated_settle_result, settle_result
from app.leases.validation import check, check_all
from app.queues.cache import QueueCache

_NO_TOKEN = UUID(int=0)  # a token that no lease has


class CompletionBatcher(Batcher[int, Sequence[Settlement], dict[int, SettledRow]]):
    """Completes the jobs of concurrent callers in one statement for each lane."""

    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, lease_ender: LeaseEnder, durations: DurationHistogram
    ) -> None:
        super().__init__("complete", infra.settings.acquire_timeout_seconds)
        self._infra = infra
        self._queues = queues
        self._lease_ender = lease_ender
        self._durations = durations

    def weight(self, item: Sequence[Settlement]) -> int:
        return len(item)

    @uses_reserved_connections
    async def run_batch(self, lane: int, calls: Sequence[Sequence[Settlement]]) -> Sequence[dict[int, SettledRow]]:
        """Returns the settled rows of each call, by `job_id.int`.

        If several calls are about the same job, the first one goes first. Calls with the same token
        then find that the job is settled. Calls with another token are tried next: theirs may be
        the valid one.
        """
        items = [item for call in calls for item in call]
        first = {item.job_id.int: item for item in reversed(items)}
        settled = _by_int(await self._complete(lane, list(first.values())))
        results = [
            {number: settled[number] for item in call if first[number := item.job_id.int] is item and number in settled}
            for call in calls
        ]
        if len(first) < len(items):
            other_tokens = [
                [item for item in call if item.lease_token != first[item.job_id.int].lease_token] for call in calls
            ]
            if any(other_tokens):
                more = await self.run_batch(lane, other_tokens)
                results = [result | other for result, other in zip(results, more, strict=True)]
        return results

    async def _complete(self, lane: int, items: Sequence[Settlement]) -> list[SettledRow]:
        now = self._infra.now()
        keep_until, archive = self._queues.retention(lane, now)
        items = sorted(items, key=_lock_order)
        rows = await store.complete(
            self._infra.db,
            lane,
            ids=[item.job_id for item in items],
            tokens=[parse_token(item.lease_token) for item in items],
            results=[raw_to_text(item.result) for item in items],
            now=now,
            keep_until=keep_until,
            archive=archive,
        )
        self._durations.record(lane, "run", [row.ran for row in rows if row.ran is not None])
        self._lease_ender.publish_ended(lane, rows)
        return rows


class SettlementService:
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, lease_ender: LeaseEnder, durations: DurationHistogram
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._lease_ender = lease_ender
        self._counters = {outcome: infra.metrics.settled.labels(outcome.value) for outcome in Outcome}
        self._completions = CompletionBatcher(infra=infra, queues=queues, lease_ender=lease_ender, durations=durations)

    @uses_reserved_connections
    async def settle(self, items: Sequence[Settlement], access: Access, pointer: str = "/items") -> list[SettleResult]:
        """Returns one result per item, in their order.

        If a job appears twice, the first item settles it; the second reports the outcome.
        """
        check_all(items, self._infra.settings, pointer)
        results: dict[int, SettleResult] = {}  # by id(item): items about one job differ
        if not access.all_queues:
            visible = await self._queues.visible_to((item.job_id for item in items), access)
            results = {id(item): not_found(item) for item in items if item.job_id not in visible}
        remaining = [item for item in items if id(item) not in results]
        while remaining:
            lanes: dict[int, dict[int, Settlement]] = {}
            for item in remaining:
                lanes.setdefault(lane_of(item.job_id), {}).setdefault(item.job_id.int, item)
            for lane, first in sorted(lanes.items()):
                results |= zip(
                    map(id, first.values()), await self._settle_lane(lane, list(first.values())), strict=True
                )
            remaining = [item for item in remaining if id(item) not in results]
        return [results[id(item)] for item in items]

    @uses_reserved_connections
    async def settle_one(self, item: Settlement) -> SettleResult:
        """Settles one job. A lost lease raises here, because the response has no other result."""
        check(item, self._infra.settings)
        (result,) = await self._settle_lane(lane_of(item.job_id), [item])
        if result.status == "not_found":
            raise NotFound(f"no job {item.job_id}")
        if result.status == "lease_lost":
            raise LeaseLost(item.job_id, value_or(result.state, ""), value_or(result.attempt, 0))
        return result

    async def _settle_lane(self, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        """Settles items of one lane, each about another job."""
        completed = [item for item in items if item.outcome is Outcome.COMPLETE]
        ended = [item for item in items if item.outcome is not Outcome.COMPLETE]
        settled = await self._completions.add(lane, completed) if completed else {}
        self._counters[Outcome.COMPLETE].inc(len(settled))
        if ended:
            rows = await self._lease_ender.end_lane(
                lane, [_lease_end(item) for item in ended if not _is_group_failure(item)]
            )
            rows += await self._lease_ender.end_with_cooldowns(
                lane, [_lease_end(item) for item in ended if _is_group_failure(item)]
            )
            settled |= _by_int(rows)
            for item in ended:
                self._counters[item.outcome].inc(item.job_id.int in settled)
        unsettled = (
            sorted(item.job_id for item in items if item.job_id.int not in settled) if len(settled) < len(items) else ()
        )
        records = (
            await store.settlement_records(self._infra.db, lane, unsettled, self._infra.retention_now())
            if unsettled
            else {}
        )
        return [
            settle_result(row)
            if (row := settled.get(item.job_id.int)) is not None
            else self._not_settled(item, records.get(item.job_id))
            for item in items
        ]

    async def finish(self) -> None:
        await self._completions.finish()

    def _not_settled(self, item: Settlement, record: SettlementRecord | None) -> SettleResult:
        if record is None:
            return not_found(item)
        settled_as = (record.settled_as or "").removesuffix(f" {IMMEDIATE}")
        if record.lease_token == parse_token(item.lease_token) and settled_as == item.outcome:
            return repeated_settle_result(record)
        self._infra.metrics.lost.inc()
        return SettleResult(
            job_id=item.job_id, status="lease_lost", state=public_state(record.state), attempt=record.attempt
        )


def _by_int(rows: Iterable[SettledRow]) -> dict[int, SettledRow]:
    """By the id as a number, because Python finds a number five times faster than a UUID."""
    return {row.id.int: row for row in rows}


def _lock_order(item: Settlement) -> int:
    """The order in which rows are locked.

    A number, because Python compares numbers ten times faster than UUIDs.
    """
    return item.job_id.int


def parse_token(text: str) -> UUID:
    """Tokens are opaque to workers, so text that is no token is a lost lease and not an error.

    Returns the driver's UUID, which is faster to create and to send than Python's.
    """
    try:
        return pgproto.UUID(text)
    except ValueError:
        return _NO_TOKEN


def _is_group_failure(item: Settlement) -> bool:
    return item.scope is Scope.GROUP and item.outcome is Outcome.FAIL


def _lease_end(item: Settlement) -> LeaseEnd:
    return LeaseEnd(
        job_id=item.job_id,
        token=parse_token(item.lease_token),
        outcome=item.outcome.value,  # type: ignore[arg-type]
        error=None if item.error is UNSET else stored_error(item.error),
        retryable=value_or(item.retryable, True),
        delay_seconds=value_or(item.retry_after_seconds if item.outcome is Outcome.FAIL else item.delay_seconds, None),
        checkpoint=raw_to_text(item.checkpoint),
    )
