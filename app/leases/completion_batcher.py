"""Completes the jobs of concurrent calls, with one statement for each lane."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from asyncpg.pgproto import pgproto

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.db.pool import uses_reserved_connections
from app.http.schema_types import raw_to_text
from app.leases import store
from app.leases.duration_histogram import DurationHistogram
from app.leases.lease_ender import LeaseEnder
from app.leases.rows import SettledRow
from app.leases.schemas import Settlement
from app.queues.cache import QueueCache

_NEVER_ISSUED_TOKEN = UUID(int=0)  # a token that no lease has


class CompletionBatcher(Batcher[int, Sequence[Settlement], dict[int, SettledRow]]):
    """Completes jobs. The settlements of one call are for different jobs of one lane."""

    def __init__(
        self, *, infra: Infrastructure, queues: QueueCache, lease_ender: LeaseEnder, durations: DurationHistogram
    ) -> None:
        super().__init__("complete", infra.settings.acquire_timeout_seconds)
        self._infra = infra
        self._queues = queues
        self._lease_ender = lease_ender
        self._durations = durations

    @uses_reserved_connections
    async def run_batch(self, lane: int, calls: Sequence[Sequence[Settlement]]) -> Sequence[dict[int, SettledRow]]:
        """Completes the jobs of all calls. Returns the settled rows of each call by `job_id.int`.

        If several calls settle the same job, the statement contains only the item of the first
        call. For the other calls it depends on their token:

        - With the same token, the call gets no row, because the job is settled already.
        - With another token, a second statement follows, because this token may be the valid one.
        """
        if len(calls) == 1:
            return [by_id_number(await self._complete(lane, calls[0]))]
        items = [item for call in calls for item in call]
        first_items = {item.job_id.int: item for item in reversed(items)}
        settled = by_id_number(await self._complete(lane, list(first_items.values())))
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
                retried = await self.run_batch(lane, other_tokens)
                results = [result | retried_result for result, retried_result in zip(results, retried, strict=True)]
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
        self._durations.record(lane, "run", [row.run_seconds for row in rows if row.run_seconds is not None])
        self._lease_ender.publish_ended(lane, rows)
        return rows


def by_id_number(rows: Iterable[SettledRow]) -> dict[int, SettledRow]:
    """Maps `id.int` to the row. Python looks up an int five times faster than a UUID."""
    return {row.id.int: row for row in rows}


def _lock_order(item: Settlement) -> int:
    """Returns the sort key for the order in which rows are locked: the job id as a number.

    Python compares numbers ten times faster than UUIDs.
    """
    return item.job_id.int


def parse_token(text: str) -> UUID:
    """Parses a lease token as the driver's UUID, which is faster to create and send than Python's.

    Text that is not a UUID becomes a token that no lease has. Tokens are opaque to workers, so such
    text means a lost lease and not an error.
    """
    try:
        return pgproto.UUID(text)
    except ValueError:
        return _NEVER_ISSUED_TOKEN
