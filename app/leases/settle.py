"""Settles jobs: a worker ends its lease with one of four outcomes.

    running -> completed   complete
    running -> ...         fail, snooze, release: see lease_ender.py

A settlement that arrives after the lease has expired is accepted if the job is waiting again and
has not been delivered since.
"""

from collections import Counter
from collections.abc import Container, Sequence
from uuid import UUID

from app.db.infrastructure import Infrastructure
from app.db.lanes import lane_of
from app.db.pool import uses_reserved_connections
from app.errors import LeaseLost, NotFound
from app.http.authorization import Access
from app.http.schema_types import UNSET, raw_to_text, value_or
from app.jobs.bulk_insert import MAX_STATEMENT_BYTES
from app.jobs.rows import public_state
from app.leases import store
from app.leases.completion_batcher import CompletionBatcher, by_id_number, parse_token
from app.leases.duration_histogram import DurationHistogram
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import IMMEDIATE, LeaseEnd, to_stored_error
from app.leases.rows import SettledRow, SettlementRecord
from app.leases.schemas import Outcome, Scope, Settlement, SettleResult
from app.leases.to_response import not_found_result, repeated_settle_result, settle_result
from app.leases.validation import check_settlement, check_settlements
from app.queues.cache import QueueCache
from app.slices import by_size, map_in_slices


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
        """Settles the items. Returns one result per item, in the order of the items.

        If a job appears twice, the first item settles it. The second item gets the same result as a
        repeated call: `already_settled` with the same token and outcome, otherwise `lease_lost`.
        """
        await check_settlements(items, self._infra.settings, pointer)
        lane = _common_lane(items) if access.all_queues else None
        return await (self._settle_lanes(items, access) if lane is None else self._settle_lane(lane, items))

    async def _settle_lanes(self, items: Sequence[Settlement], access: Access) -> list[SettleResult]:
        """Settles items of any lanes, several of which may be for the same job."""
        results: dict[int, SettleResult] = {}  # keyed by id(item), because two items can be about the same job
        if not access.all_queues:
            visible = await self._queues.accessible_ids((item.job_id for item in items), access)
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

        Raises an error for a lost lease, because the request has no other settlement whose result
        the error would hide.
        """
        check_settlement(item, self._infra.settings)
        (result,) = await self._settle_lane(lane_of(item.job_id), [item])
        if result.status == "not_found":
            raise NotFound(f"no job {item.job_id}")
        if result.status == "lease_lost":
            raise LeaseLost(item.job_id, value_or(result.state, ""), value_or(result.attempt, 0))
        return result

    async def _settle_lane(self, lane: int, items: Sequence[Settlement]) -> list[SettleResult]:
        """Settles items of one lane, each for a different job."""
        completions = [item for item in items if item.outcome is Outcome.COMPLETE]
        settled: dict[int, SettledRow] = {}
        for batch in by_size(completions, _result_bytes, MAX_STATEMENT_BYTES):
            settled |= await self._completions.add(lane, batch, weight=len(batch))
        self._counters[Outcome.COMPLETE].inc(len(settled))
        if len(completions) < len(items):
            settled |= await self._end_leases(lane, [item for item in items if item.outcome is not Outcome.COMPLETE])
        if len(settled) == len(items):
            return await map_in_slices(settle_result, [settled[item.job_id.int] for item in items])
        records = await self._find_records(lane, items, settled)

        def result_of(item: Settlement) -> SettleResult:
            row = settled.get(item.job_id.int)
            return self._result_without_lease(item, records.get(item.job_id)) if row is None else settle_result(row)

        return await map_in_slices(result_of, items)

    async def _end_leases(self, lane: int, items: Sequence[Settlement]) -> dict[int, SettledRow]:
        """Settles items whose outcome is not complete."""
        single_ends = await map_in_slices(_lease_end, [item for item in items if not _is_group_failure(item)])
        group_failures = await map_in_slices(_lease_end, [item for item in items if _is_group_failure(item)])
        rows = await self._lease_ender.end_lane(lane, single_ends)
        rows += await self._lease_ender.end_with_cooldowns(lane, group_failures)
        settled = by_id_number(rows)
        for outcome, count in Counter(item.outcome for item in items if item.job_id.int in settled).items():
            self._counters[outcome].inc(count)
        return settled

    async def _find_records(
        self, lane: int, items: Sequence[Settlement], settled: Container[int]
    ) -> dict[UUID, SettlementRecord]:
        """Reads the settlement records of jobs that these items have not settled."""
        ids = sorted(item.job_id for item in items if item.job_id.int not in settled)
        return await store.settlement_records(self._infra.db, lane, ids, self._infra.retention_now())

    async def finish(self) -> None:
        await self._completions.finish()

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


def _common_lane(items: Sequence[Settlement]) -> int | None:
    """Returns the lane of the items. Returns None if they have several lanes, or if two of them are
    for the same job."""
    lanes = {lane_of(item.job_id) for item in items}
    are_distinct = len({item.job_id.int for item in items}) == len(items)
    return lanes.pop() if len(lanes) == 1 and are_distinct else None


def _result_bytes(item: Settlement) -> int:
    return 0 if item.result is UNSET else len(item.result)


def _is_group_failure(item: Settlement) -> bool:
    return item.scope is Scope.GROUP and item.outcome is Outcome.FAIL


def _lease_end(item: Settlement) -> LeaseEnd:
    return LeaseEnd(
        job_id=item.job_id,
        token=parse_token(item.lease_token),
        outcome=item.outcome.value,  # type: ignore[arg-type]
        error=None if item.error is UNSET else to_stored_error(item.error),
        retryable=value_or(item.retryable, True),
        delay_seconds=value_or(item.retry_after_seconds if item.outcome is Outcome.FAIL else item.delay_seconds, None),
        checkpoint=raw_to_text(item.checkpoint),
    )
