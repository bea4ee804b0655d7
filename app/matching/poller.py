"""One long poll that waits for jobs.

A waiting poller has no task of its own, no database connection and uses no CPU. The states of a
`Poller`:

    claiming   runs claim statements
    asleep     waits for a wake-up
    woken      has been woken and claims next
    reserved   jobs are being stored as leased to it, so it takes no others

    claiming -> asleep     wait: the claim has found nothing
    claiming -> woken      notify, wake: kept, so `wait` returns immediately
    asleep   -> woken      notify, wake, or its time is up
    asleep   -> reserved   reserve (app/enqueue/insert_batcher.py)
    reserved -> woken      deliver: the jobs are committed, `wait` returns them
    reserved -> asleep     deliver, without jobs: they were not stored
    reserved -> woken      the reservation has timed out, `wait` returns nothing
    woken    -> claiming   begin_claim

A poller leaves the registry from any state. The wake-ups that it has not consumed go to other
pollers.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from app.jobs.rows import ClaimedRow

Reservation: TypeAlias = "asyncio.Future[Sequence[ClaimedRow]]"

# Seconds. A commit that takes longer waits for a standby or a disk, and the poller need not.
RESERVATION_TIMEOUT = 2.0

_sequence = itertools.count()


class WakeUp(NamedTuple):
    """A job of this queue and type has become claimable.

    Without a type: some jobs have become claimable, perhaps many, of any type.
    """

    queue: str
    job_type: str | None


class Poller:
    """One waiting claim.

    A wake-up that arrives during a claim is kept: the poller claims again, or passes it on.
    """

    def __init__(
        self,
        queues: Sequence[str],
        job_types: frozenset[str] | None,
        worker_id: str | None,
        lease_seconds: int | None = None,
        match_capacity: int = 0,
    ) -> None:
        self.queues = queues
        self.job_types = job_types
        self.worker_id = worker_id
        self.lease_seconds = lease_seconds
        self.match_capacity = match_capacity  # how many jobs a sync match may give it
        self.number = next(_sequence)
        self.is_woken = False
        self._sleep: asyncio.Future[None] | None = None
        self._reservation: Reservation | None = None
        self._new_wake_ups: set[WakeUp] = set()
        self._wake_ups_in_claim: set[WakeUp] = set()

    @property
    def is_asleep(self) -> bool:
        return self._sleep is not None

    @property
    def is_available(self) -> bool:
        """Whether it can be notified of a job or matched with one.

        A poller with a reservation claims no other job.
        """
        return self._reservation is None and not self.is_woken

    @property
    def unconsumed(self) -> set[WakeUp]:
        """The wake-ups that other pollers should get when this one leaves."""
        return self._new_wake_ups | self._wake_ups_in_claim

    def wake(self) -> None:
        """Wakes the poller without a job.

        The client disconnected, the broker drains, or the worker has a directive.
        """
        self.is_woken = True
        self._end_sleep()

    def notify(self, wake_up: WakeUp) -> None:
        self._new_wake_ups.add(wake_up)
        self.wake()

    def begin_claim(self) -> None:
        """Assigns all wake-ups so far to the claim that begins now: it sees every job that they
        announced.
        """
        self.is_woken = False
        self._wake_ups_in_claim |= self._new_wake_ups
        self._new_wake_ups = set()

    def nothing_found(self) -> None:
        """Other pollers claimed the jobs first."""
        self._wake_ups_in_claim = set()

    def consume(self, wake_ups: set[WakeUp], *, claimed_all: bool) -> None:
        """Consumes the wake-ups of the claimed jobs.

        A wake-up without a type is consumed only if the claim has left no job behind.
        """
        queues = {wake_up.queue for wake_up in wake_ups}
        consumed = {
            wake_up
            for wake_up in self._wake_ups_in_claim
            if wake_up in wake_ups or (claimed_all and not wake_up.job_type and wake_up.queue in queues)
        }
        self._wake_ups_in_claim -= consumed

    def reserve(self) -> Reservation:
        """Jobs are being stored for this poller.

        However it wakes up, it first waits for the outcome, for a while.
        """
        self._reservation = asyncio.get_running_loop().create_future()
        return self._reservation

    def deliver(self, reservation: Reservation, rows: Sequence[ClaimedRow]) -> bool:
        """Ends a reservation with the jobs, or with none if they were not stored.

        Without jobs the poller sleeps on. Returns False if the poller no longer waits for them.
        """
        if reservation.done():
            return False
        reservation.set_result(rows)
        if rows:
            self.wake()
        elif self._reservation is reservation:
            self._reservation = None
        return True

    async def wait(self, seconds: float) -> Sequence[ClaimedRow]:
        """Sleeps until it is woken. Returns the jobs that were delivered to it in the meantime."""
        if not self.is_woken:
            await self._fall_asleep(seconds)
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            return ()
        await asyncio.wait([reservation], timeout=RESERVATION_TIMEOUT)
        return reservation.result() if reservation.done() or not reservation.cancel() else ()

    async def _fall_asleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later(seconds, self._end_sleep)
        try:
            await self._sleep
        finally:
            timer.cancel()
            self._sleep = None

    def _end_sleep(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
