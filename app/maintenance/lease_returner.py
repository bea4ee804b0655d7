"""Requeues jobs whose leases no worker has received.

    running -> ready | pending   the lease ends at no cost: the attempt is not counted

Such a lease comes from a sync match whose poller never got the job, or from a claim that failed
after its commit, if the jobs could not be requeued at once. The broker that stored the lease
requeues the job. Postgres may still be committing the lease: the broker tries again until it finds
the lease, or until the lease has expired.
"""

import time
from typing import NamedTuple
from uuid import UUID

from app.events import EventBus, LeasesAbandoned
from app.leases.lease_ender import LeaseEnder
from app.leases.retry_decision import LeaseEnd
from app.periodic_service import PeriodicService


class _Abandoned(NamedTuple):
    """A lease to end. The lease expires at `until`, by the monotonic clock."""

    lease_end: LeaseEnd
    until: float


class LeaseReturner(PeriodicService):
    def __init__(self, *, lease_ender: LeaseEnder, events: EventBus) -> None:
        super().__init__()
        self._lease_ender = lease_ender
        self._abandoned: dict[UUID, _Abandoned] = {}
        events.subscribe(LeasesAbandoned, self._on_abandoned)

    def _on_abandoned(self, event: LeasesAbandoned) -> None:
        now = time.monotonic()
        for lease in event.leases:
            lease_end = LeaseEnd(lease.id, lease.lease_token, "return")
            self._abandoned[lease.id] = _Abandoned(lease_end, now + lease.lease_seconds)
        self.wake()

    async def run_once(self) -> None:
        now = time.monotonic()
        self._abandoned = {job_id: lease for job_id, lease in self._abandoned.items() if lease.until > now}
        for row in await self._lease_ender.end([lease.lease_end for lease in self._abandoned.values()]):
            del self._abandoned[row.id]
