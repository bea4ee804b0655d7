"""Ends expired leases, so that their jobs run again or become dead letters.

The worker of such a lease has crashed, hangs, or has lost its connection.

    running -> ready | pending   the job has attempts left
    running -> scheduled         the run reached its timeout; the job is retried after a back-off
    running -> dead              the job has no attempt, crash or delivery left
    running -> cancelled         a cancellation had been requested

Lease checks say when to look. A check that is due is moved to the next end of a lease of its jobs,
or deleted if none of them is running.

Every broker runs a lease rescuer; no leader is needed. If two brokers find the same lease, only one
of them ends it: an update skips a lease that has changed since the decision.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from asyncpg import Record

from app.db.infrastructure import Infrastructure
from app.db.lanes import group_by_lane
from app.leases import store as leases
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import EXPIRED, LeaseEnd
from app.log import log
from app.periodic_service import PeriodicService

BATCH_SIZE = 500  # lease checks per statement
MAX_JOBS = 5000  # jobs of these checks; a check has as many as one poll has claimed
RETRY_DELAY = timedelta(seconds=1)  # before a lease that has expired and could not be ended is checked again
FULL_SCAN_EVERY = 20  # every 20th run is a full scan
SCAN_OVERLAP = timedelta(seconds=5)  # how far before the end of the last scan the next scan begins
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class LeaseRescuer(PeriodicService):
    def __init__(self, *, infra: Infrastructure, lease_ender: LeaseEnder) -> None:
        super().__init__()
        self._infra = infra
        self._lease_ender = lease_ender
        self._scanned_until = _BEGINNING
        self._runs = 0

    @property
    def scan_from(self) -> datetime:
        """The due time at which the next scan of the index begins.

        A scan skips the part of the index that earlier runs have scanned: that part is full of dead
        entries, of jobs that were settled in time. Every 20th run is a full scan, because a slow
        commit can write a lease whose expiry is in the skipped part.
        """
        is_full_scan = self._runs % FULL_SCAN_EVERY == 0
        return _BEGINNING if is_full_scan else self._scanned_until - SCAN_OVERLAP

    def mark_scanned(self, until: datetime) -> None:
        """Records that all leases that expired at or before `until` have been ended.

        `DueCheck` calls this, too, if its query finds no expired lease.
        """
        self._scanned_until = until
        self._runs += 1

    async def run_once(self) -> None:
        now, scan_from = self._infra.now(), self.scan_from
        while checks := await leases.due_checks(self._infra.db, scan_from, now, limit=BATCH_SIZE, max_jobs=MAX_JOBS):
            await self._end_expired(checks, now)
            is_full = len(checks) == BATCH_SIZE or sum(len(check["job_ids"]) for check in checks) >= MAX_JOBS
            if not await self._move(checks) or not is_full:  # `not moved`: other brokers are moving these checks
                break
        self.mark_scanned(now)

    async def _end_expired(self, checks: Sequence[Record], now: datetime) -> None:
        """Ends the leases of these checks that have expired."""
        ids = {job_id for check in checks for job_id in check["job_ids"]}
        expired = [
            row
            for lane, lane_ids in group_by_lane(ids, lambda job_id: job_id).items()
            for row in await leases.expired_leases(self._infra.db, lane, sorted(lane_ids), now)
        ]
        ended = await self._lease_ender.end(
            [LeaseEnd(row["id"], row["lease_token"], "expire", EXPIRED) for row in expired]
        )
        if ended:
            self._infra.metrics.expired.inc(len(ended))
            log.info("leases expired", count=len(ended))

    async def _move(self, checks: Sequence[Record]) -> int:
        """Moves these checks to the next end of a lease. Returns how many it has moved or deleted."""
        claims: dict[int, list[bytes]] = {}
        for check in checks:
            claims.setdefault(check["lane"], []).append(check["claim"])
        earliest = self._infra.now() + RETRY_DELAY
        return sum([await leases.move_checks(self._infra.db, lane, claims[lane], earliest) for lane in sorted(claims)])
