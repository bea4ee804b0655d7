"""Claims for concurrent callers in one statement for each lane."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from app.db.batcher import Batcher
from app.db.infrastructure import Infrastructure
from app.errors import DatabaseUnavailable
from app.jobs.rows import ClaimedRow
from app.jobs.validation import MAX_METADATA_BYTES
from app.leases import store
from app.leases.low_water_marks import LowWaterMarks
from app.leases.rows import ClaimParams, LanePolicy, PollSlice
from app.settings import Settings

# Of one job: 32 tags of 120 characters and texts of 1,200, each character escaped in six bytes.
MAX_TAGS_AND_PROGRESS_BYTES = 32 * 1024


class ClaimCall(NamedTuple):
    """One of the calls that may share a statement."""

    limit: int
    params: ClaimParams


class ClaimBatcher(Batcher[int, ClaimCall, list[ClaimedRow]]):
    def __init__(self, *, infra: Infrastructure, low_water_marks: LowWaterMarks) -> None:
        super().__init__("claim", infra.settings.acquire_timeout_seconds)
        self._infra = infra
        self._low_water_marks = low_water_marks
        self._max_job_bytes = max_job_bytes(infra.settings)

    def weight(self, item: ClaimCall) -> int:
        return item.limit

    async def run_batch(self, lane: int, calls: Sequence[ClaimCall]) -> Sequence[list[ClaimedRow]]:
        """First come, first served.

        Claims nothing for clients that disconnected while their call was queued.
        """
        connected = [call for call in calls if call.params.client is None or not call.params.client.is_disconnected]
        if not connected:
            return [[] for _ in calls]
        slices = [PollSlice(limit, params.worker_id, params.lease_seconds) for limit, params in connected]
        params = connected[0].params._replace(poll_slices=slices)
        async with self._infra.db.autocommit() as connection:
            rows = await self._low_water_marks.claim(
                connection, lane, sum(call.limit for call in connected), params, LanePolicy(), self._infra.now()
            )
        claimed: dict[int, list[ClaimedRow]] = {id(call): [] for call in calls}
        for row in rows:
            claimed[id(connected[row.slice_number - 1])].append(row)
        unserved = [call for call in connected if not claimed[id(call)]]
        if unserved and any(
            self.may_be_truncated(claimed[id(call)], call.limit, call.params.max_bytes) for call in connected
        ):
            # A failure here must not fail the other calls: their jobs are leased already.
            with suppress(DatabaseUnavailable):
                claimed |= zip(map(id, unserved), await self.run_batch(lane, unserved), strict=True)
        return list(claimed.values())

    def may_be_truncated(self, rows: Sequence[ClaimedRow], limit: int, max_bytes: int) -> bool:
        """Whether jobs may have been left behind because the next did not fit into the response.

        The first job of a response always fits.
        """
        return 0 < len(rows) < limit and sum(row.size for row in rows) + self._max_job_bytes > max_bytes


def max_job_bytes(settings: Settings) -> int:
    """The most that one job takes in a response, as the claim statement measures it."""
    payload_and_checkpoint = 2 * settings.max_payload_bytes
    return store.ENVELOPE_BYTES + payload_and_checkpoint + MAX_METADATA_BYTES + MAX_TAGS_AND_PROGRESS_BYTES
