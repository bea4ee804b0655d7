"""Settles jobs: a worker ends its lease with one of four outcomes.

    running -> completed   complete
    running -> ...         fail, snooze, release: see lease_ender.py

A late settlement, after the lease has expired, is accepted from ready and scheduled too, unless the
job has been delivered again in the meantime.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from uuid import UUID

from asyncpg.pgproto import pgproto

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of
from app.db.pool import uses_reserved_connections
from app.errors import LeaseLost, NotFound
from app.http.authorization import Access
from app.http.schema_types import UNSET, raw_to_text, value_or
from app.jobs.bulk_insert import MAX_STATEMENT_BYTES
from app.jobs.rows import public_state
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import IMMEDIATE, LeaseEnd, stored_error
from app.leases.rows import SettledRow, SettlementRecord
from app.leases.schemas import Outcome, Scope, Settlement, SettleResult
from app.leases.to_response import not_found_result, repeated_settle_result, settle_result
from app.leases.validation import check_settlement, check_settlements
from app.queues.cache import QueueCache
from app.slices import by_size, map_in_slices

_NO_TOKEN = UUID(int=0)  # a token that no lease has


class SettlementService:
    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, lease_ender: LeaseEnder, durations: DurationHistogram
    ) -> None:
        self._infra = infra
        self._queues = queues
        self._lease_ender = lease_ender
        self._durations = durations
        self._counters = {outcome: infra.metrics.settled.labels(outcome.value) for outcome in Outcome}
        self._completions = Batcher("complete", self._complete_batch, infra.settings.acquire_timeout_seconds, len)

    @uses_reserved_connections
    async def settle(self, items: Sequence[Settlement], access: Access, pointer: str = "/items") -> list[SettleResult]:
        """Returns one result per item, in their order.

        If a job appears twice, the first item settles it; the second reports the outcome.
        """
        await check_settlements(items, self._infra.settings, pointer)
        results: dict[int, SettleResult] = {}  # keyed by id(item), because two items can be about the same job
        if not access.all_queues:
            visible = await self._queues.visible_to((item.job_id for item in items), access)
            results = {id(item): not_found_result(item) for item in items if item.job_id not in visible}
        remaining = [item for item in items if id(item) not in results]
        while remaining:
            lanes: dict[int, dict[int, Settlement]] = {}
            for item in remaining:
                lanes.setdefault(lane_of(item.job_id), {}).setdefault(item.job_id.int, item)
            for lane, items_of_jobs in sorted(lanes.items()):
                first_items = list(items_of_jobs.values())
                results |= zip(map(id, first_items), await self._settle_lane(lane, first_items), strict=True)
            remaining = [item for item in remaining if id(item) not in results]
        return [results[id(item)] for item in items]

    @uses_reserved_connections
    async def settle_one(self, item: Settlement) -> SettleResult:
        """Settles one job.

        Raises for a lost lease: there is no other settlement in the request that the error could
        affect.
        """
        check_settlement(item, self._infra.settings)
        (result,) = await self._settle_lane(lane_of(item.job_id), [item])
        if result.status == "not_found":
            raise NotFound(f"no job {item.job_id}")
        if result.status == "lease_lost":
            raise LeaseLost(item.job_id, value_or(result.state, ""), value_or(result.attempt, 0))
        return result

    async def _settle_lane(self, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        """Settles items of one lane, no two about the same job."""
        completions = [item for item in items if item.outcome is Outcome.COMPLETE]
        settled: dict[int, SettledRow] = {}
        for batch in by_size(completions, _result_bytes, MAX_STATEMENT_BYTES):
            settled |= await self._completions.add(lane, batch)
        self._counters[Outcome.COMPLETE].inc(len(settled))
        if len(completions) < len(items):
            settled |= await self._end_leases(lane, [item for item in items if item.outcome is not Outcome.COMPLETE])
        records = await self._find_records(lane, items, settled) if len(settled) < len(items) else {}

        def result_of(item: Settlement) -> SettleResult:
            row = settled.get(item.job_id.int)
            return self._result_without_lease(item, records.get(item.job_id)) if row is None else settle_result(row)

        return await map_in_slices(result_of, items)

    async def _end_leases(self, lane: int, items: Sequence[Settlement]) -> dict[int, SettledRow]:
        """Settles the items with another outcome than complete."""
        single_ends = await map_in_slices(_lease_end, [item for item in items if not _is_group_failure(item)])
        group_failures = await map_in_slices(_lease_end, [item for item in items if _is_group_failure(item)])
        rows = await self._lease_ender.end_lane(lane, single_ends)
        rows += await self._lease_ender.end_with_cooldowns(lane, group_failures)
        settled = _by_id_number(rows)
        for outcome, count in Counter(item.outcome for item in items if item.job_id.int in settled).items():
            self._counters[outcome].inc(count)
        return settled

    async def _find_records(
        self, lane: int, items: Sequence[Settlement], settled: Container[int]
    ) -> dict[UUID, SettlementRecord]:
        """The settlement records of the jobs that were not settled."""
        ids = sorted(item.job_id for item in items if item.job_id.int not in settled)
        return await store.settlement_records(self._infra.db, lane, ids, self._infra.retention_now())

    @uses_reserved_connections
    async def _complete_batch(
        self, lane: int, calls: Sequence[Sequence[Settlement]]
    ) -> Sequence[dict[int, SettledRow]]:
        """Runs one statement for several calls.

        Returns the settled rows of each call, by `job_id.int`.

        If several calls settle the same job, the statement gets the item of the first call. Calls
        with the same token then find that the job is settled. Calls with another token are tried
        next: theirs may be the valid one.
        """
        items = [item for call in calls for item in call]
        first_items = {item.job_id.int: item for item in reversed(items)}
        settled = _by_id_number(await self._complete(lane, list(first_items.values())))
        results = [
            {
                job_number: settled[job_number]
                for item in call
                if first_items[job_number := item.job_id.int] is item and job_number in settled
            }
            for call in calls
        ]
        if len(first_items) < len(items):
            other_tokens = [
                [item for item in call if item.lease_token != first_items[item.job_id.int].lease_token]
                for call in calls
            ]
            if any(other_tokens):
                retried = await self._complete_batch(lane, other_tokens)
                results = [result | retried_result for result, retried_result in zip(results, retried, strict=True)]
        return results

    async def finish(self) -> None:
        await self._completions.finish()

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
        self._durations.record(lane, "run", [row.run_seconds for row in rows if row.run_seconds is not None])
        self._lease_ender.publish_ended(lane, rows)
        return rows

    def _result_without_lease(self, item: Settlement, record: SettlementRecord | None) -> SettleResult:
        if record is None:
            return not_found_result(item)
        settled_as = (record.settled_as or "").removesuffix(f" {IMMEDIATE}")
        if record.lease_token == parse_token(item.lease_token) and settled_as == item.outcome:
            return repeated_settle_result(record)
        self._infra.metrics.lost.inc()
        return SettleResult(
            job_id=item.job_id, status="lease_lost", state=public_state(record.state), attempt=record.attempt
        )


def _by_id_number(rows: Iterable[SettledRow]) -> dict[int, SettledRow]:
    """By the id as a number, because Python finds a number five times faster than a UUID."""
    return {row.id.int: row for row in rows}


def _lock_order(item: Settlement) -> int:
    """The order in which rows are locked.

    A number, because Python compares numbers ten times faster than UUIDs.
    """
    return item.job_id.int


def _result_bytes(item: Settlement) -> int:
    return 0 if item.result is UNSET else len(item.result)


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
