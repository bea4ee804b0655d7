"""The safety net behind wake-ups: looks for ready jobs in the queues that local pollers wait for.

Wake-ups are best effort: a lost notification would leave a poller asleep beside a ready job. This
service bounds that delay to `poll_seconds`.
"""

from app.db.infrastructure import Infrastructure
from app.leases import store as leases
from app.matching.pollers import PollerRegistry
from app.queues.cache import QueueCache


class ReadyPoller:
    def __init__(self, infra: Infrastructure, queues: QueueCache, pollers: PollerRegistry) -> None:
        self._infra = infra
        self._queues = queues
        self._pollers = pollers

    async def run_once(self) -> None:
        polled = set(self._pollers.queues())
        if not polled:
            return
        if not polled <= {queue.name for queue in self._queues.all()}:
            await self._queues.refresh()
        lanes = self._queues.lanes(polled)
        for lane in await leases.ready_lanes(self._infra.db, lanes) if lanes else []:
            self._pollers.wake(self._queues.name(lane), [None])
