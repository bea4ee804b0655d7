"""Finds ready jobs whose wake-up was lost, in the queues that pollers of this process wait for.

Wake-ups are best effort: after a lost wake-up, a poller would wait although a job is ready. This
service limits the delay to `poll_seconds`.
"""

from app.db.infrastructure import Infrastructure
from app.events import EventBus, QueueReady
from app.leases import store as leases
from app.matching.pollers import PollerRegistry
from app.periodic_service import PeriodicService
from app.queues.cache import QueueCache


class ReadyPoller(PeriodicService):
    def __init__(self, *, infra: Infrastructure, queues: QueueCache, pollers: PollerRegistry, events: EventBus) -> None:
        super().__init__()
        self._infra = infra
        self._queues = queues
        self._pollers = pollers
        events.subscribe(QueueReady, self._on_queue_ready)
        infra.config_versions.subscribe("policies", self._on_config_changed)

    def _on_queue_ready(self, event: QueueReady) -> None:
        """Wakes this service if the event concerns no cached queue.

        If `queue_id` is None, notifications may have been lost. If the queue is not cached yet,
        this service loads it. For a cached queue, `PollerRegistry` wakes pollers.
        """
        if event.queue_id is None or self._queues.name_by_id(event.queue_id) is None:
            self.wake()

    async def _on_config_changed(self) -> None:
        """Wakes this service, because a change of the configuration may make jobs claimable.

        For example, a queue is resumed, or a limit is raised or removed.
        """
        self.wake()

    async def run_once(self) -> None:
        polled = set(self._pollers.polled_queues())
        if not polled:
            return
        lanes = [lane for queue in await self._queues.find_all(sorted(polled)) for lane in queue.all_lanes]
        for lane in await leases.ready_lanes(self._infra.db, lanes) if lanes else []:
            self._pollers.wake(self._queues.name_by_lane(lane), [None])
