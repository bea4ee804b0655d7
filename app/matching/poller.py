"""One long poll that waits for jobs.

While a poll waits, its request task is suspended. The task holds no database connection, runs no
statement and uses no CPU. The states of a `Poller`:

    claiming   runs claim statements
    asleep     waits for a wake-up
    awake      claims next, or ends
    reserved   a sync match is storing jobs as leased to the poller, which can get no other job

    claiming -> asleep     wait: the claim has found nothing, and there is time left
    claiming -> awake      notify, wake: `wait` then returns immediately
    asleep   -> awake      notify, wake, the client has disconnected, or the time is up
    asleep   -> reserved   reserve (app/enqueue/insert_batcher.py)
    reserved -> awake      deliver: the jobs are committed, and `wait` returns them
    reserved -> asleep     deliver without jobs (they were not stored), if the poller still sleeps
    reserved -> awake      deliver without jobs, after the end of the sleep: `wait` returns no jobs
    reserved -> awake      RESERVATION_TIMEOUT after the end of the sleep: `wait` returns no jobs
    awake    -> claiming   begin_claim

A poller can leave the registry in any state. Its unconsumed wake-ups then go to other pollers.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from app.jobs.rows import ClaimedRow

Reservation: TypeAlias = "asyncio.Future[Sequence[ClaimedRow]]"

# After its sleep, a poller waits this many seconds for the INSERT of its sync match. If the commit
# takes longer, a standby or a disk is slow, and the poller gives up.
RESERVATION_TIMEOUT = 2.0

_sequence = itertools.count()


class WakeUp(NamedTuple):
    """Announces that one job of this queue and type has become claimable.

    If `job_type` is None, any number of jobs of any type may have become claimable.
    """

    queue: str
    job_type: str | None


class Poller:
    """A long poll: it claims, sleeps until it is woken, and claims again.

    A wake-up that arrives during a claim is kept: the poller claims again, or the wake-up goes to
    another poller.
    """

    def __init__(
        self,
        queues: Sequence[str],
        job_types: frozenset[str] | None,
        worker_id: str | None,
        lease_seconds: int | None = None,
        match_capacity: int = 0,
        *,
        disconnected: "asyncio.Future[None]",
    ) -> None:
        """`disconnected` is done when the client has disconnected; the poller then stops waiting.

        `match_capacity` is the maximum number of jobs that an enqueue may store as already leased
        to this poller (a sync match).
        """
        self.queues = queues
        self.job_types = job_types
        self.worker_id = worker_id
        self.lease_seconds = lease_seconds
        self.match_capacity = match_capacity
        self.arrival = next(_sequence)
        self.has_wake_up = False  # whether `wake` was called after the last `begin_claim`
        self._disconnected = disconnected
        self._sleep: asyncio.Future[None] | None = None
        self._reservation: Reservation | None = None
        self._new_wake_ups: set[WakeUp] = set()
        self._wake_ups_in_claim: set[WakeUp] = set()

    @property
    def is_asleep(self) -> bool:
        return self._sleep is not None

    @property
    def is_available(self) -> bool:
        """Whether the poller can be woken for a job or matched with a job.

        False if the poller has been woken already, if jobs are being stored for it, or if its
        client has disconnected.
        """
        return self._reservation is None and not self.has_wake_up and not self._disconnected.done()

    @property
    def unconsumed(self) -> set[WakeUp]:
        """The wake-ups that go to other pollers when this poller leaves the registry."""
        return self._new_wake_ups | self._wake_ups_in_claim

    def wake(self) -> None:
        """Wakes the poller.

        Called when a job may be claimable, when the broker drains, and when the worker's directive
        becomes `drain` or `stop`.
        """
        self.has_wake_up = True
        self._end_sleep()

    def notify(self, wake_up: WakeUp) -> None:
        self._new_wake_ups.add(wake_up)
        self.wake()

    def begin_claim(self) -> None:
        """Assigns all wake-ups so far to the claim that begins now.

        Their jobs are committed, so the claim can find them.
        """
        self.has_wake_up = False
        self._wake_ups_in_claim |= self._new_wake_ups
        self._new_wake_ups = set()

    def consume(self, wake_ups: set[WakeUp], *, claimed_all: bool) -> None:
        """Removes `wake_ups`, those of the jobs that the claim has returned.

        Removes a wake-up without a job type only if the claim has returned jobs of its queue and
        left none behind (`claimed_all`).
        """
        queues = {wake_up.queue for wake_up in wake_ups}
        consumed = {
            wake_up
            for wake_up in self._wake_ups_in_claim
            if wake_up in wake_ups or (claimed_all and not wake_up.job_type and wake_up.queue in queues)
        }
        self._wake_ups_in_claim -= consumed

    def reserve(self) -> Reservation:
        """Reserves the poller for jobs that are being stored.

        Even if the poller is woken in the meantime, it waits up to RESERVATION_TIMEOUT for the
        outcome of the INSERT.
        """
        self._reservation = asyncio.get_running_loop().create_future()
        return self._reservation

    def deliver(self, reservation: Reservation, rows: Sequence[ClaimedRow]) -> bool:
        """Ends a reservation. `rows` are the stored jobs, or empty if the jobs were not stored.

        Without jobs, a sleeping poller sleeps on. Returns False if the poller no longer waits for
        the jobs.
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
        """Sleeps until the poller is woken, its client has disconnected, or the time is up.

        Returns the jobs that a sync match has delivered in the meantime. Removes the wake-ups of
        the last claim, because that claim found no job: other pollers had claimed the jobs first.
        """
        self._wake_ups_in_claim = set()
        if seconds > 0 and not self.has_wake_up and not self._disconnected.done():
            await self._fall_asleep(seconds)
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            return ()
        await asyncio.wait([reservation], timeout=RESERVATION_TIMEOUT)
        if reservation.done():
            return reservation.result()
        reservation.cancel()
        return ()

    async def _fall_asleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later(seconds, self._end_sleep)
        self._disconnected.add_done_callback(self._end_sleep)
        try:
            await self._sleep
        finally:
            timer.cancel()
            self._disconnected.remove_done_callback(self._end_sleep)
            self._sleep = None

    def _end_sleep(self, _: object = None) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
