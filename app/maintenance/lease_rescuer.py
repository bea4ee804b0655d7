"""Ends expired leases, so that their jobs run again or become dead letters.

The worker of such a lease has crashed, hangs, or has lost its connection.

    running -> ready | pending   the job has attempts left
    running -> scheduled         the run reached its timeout; the job is retried after a back-off
    running -> dead              the job has no attempt, crash or delivery left
    running -> cancelled         a cancellation had been requested

Every broker runs a lease rescuer; no leader is needed. If two brokers find the same lease, only one
of them ends it: an update skips a lease that has changed since the decision.
"""

from datetime import UTC, datetime, timedelta

from app.db.infrastructure import Infrastructure
from app.leases import store as leases
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import EXPIRED, LeaseEnd
from app.log import log
from app.periodic_service import PeriodicService

BATCH_SIZE = 500  # leases per statement
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
        """The lease expiry at which the next scan of the index begins.

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
        now, scan_from, rescued = self._infra.now(), self.scan_from, 0
        while rows := await leases.expired_leases(self._infra.db, scan_from, now, BATCH_SIZE):
            ended = await self._lease_ender.end(
                [LeaseEnd(row["id"], row["lease_token"], "expire", EXPIRED) for row in rows]
            )
            rescued += len(ended)
            if len(rows) < BATCH_SIZE or not ended:  # `not ended`: other brokers ended the leases first
                break
        self.mark_scanned(now)
        if rescued:
            self._infra.metrics.expired.inc(rescued)
            log.info("leases expired", count=rescued)
