"""Wake-ups between processes: one connection that listens, and sends coalesced NOTIFYs.

No job depends on a wake-up: a lost one costs the time until the next poll.

    connecting -> listening    LISTEN succeeded; QueueReady(None) is published, because
                               notifications sent while there was no connection are lost
    listening  -> listening    sends pending notifications or, after 2 s without any, a keepalive
    listening  -> connecting   a statement failed or timed out; the next try follows after 1 s
"""

import asyncio
from uuid import uuid4

from app.db.failure_causes import describe
from app.db.lanes import queue_id_of
from app.db.primary import Connection, PrimaryConnector
from app.events import ConfigNotified, EventBus, JobsClaimable, JobsMoved, QueueReady
from app.log import log
from app.metrics import Metrics

CHANNEL = "longshore"
CONFIG_ID = 0  # stands for the configuration, in place of a queue id: no queue has it
# NOTIFY takes a cluster-wide lock, so it never runs inside an enqueue. A process with few
# notifications sends each at once. While more keep coming, the pauses grow, down to a rate of a
# hundred NOTIFYs a second.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.01
# Interval and timeout. A black-holed connection never reports that it is dead, so it must answer a
# statement regularly.
KEEPALIVE_SECONDS = 2.0
MAX_IDS = 200  # in one NOTIFY: its payload holds 8000 bytes, and ids are short numbers

# A wake-up may be lost in a crash, so its commit need not be flushed: with the cluster-wide lock
# held, no transaction should wait for a disk. SET LOCAL, because behind a pooler the session is
# shared. One text is one round trip. It needs no escaping, because its payload contains only hex
# digits and spaces.
_NOTIFY = f"SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '%s'"


class Notifier:
    """Notifies the other processes when a queue has claimable jobs or the configuration has
    changed. Publishes the notifications that it receives from them as events.

    A notification is a list of queue ids. CONFIG_ID in it says that the configuration has changed.
    """

    def __init__(self, *, dsn: str, metrics: Metrics, events: EventBus, enabled: bool) -> None:
        self._connector = PrimaryConnector(dsn)
        self._metrics = metrics
        self._events = events
        self._enabled = enabled
        self._sender = uuid4().hex
        self._pending: set[int] = set()
        self._has_pending = asyncio.Event()
        self._pause = MIN_PAUSE_SECONDS
        self._is_lost = False
        events.subscribe_moved(["ready"], self._announce_lane)
        events.subscribe(JobsClaimable, self._announce_lane)

    def _announce_lane(self, event: JobsMoved | JobsClaimable) -> None:
        self._announce(queue_id_of(event.lane))

    def announce_config(self) -> None:
        """Notifies the other processes soon that the configuration has changed. The caller updates
        its own process directly."""
        self._announce(CONFIG_ID)

    def _announce(self, queue_id: int) -> None:
        if self._enabled:
            self._pending.add(queue_id)
            self._has_pending.set()

    async def run(self) -> None:
        """Sends and listens forever on one connection, and replaces the connection when it
        fails."""
        while self._enabled:
            try:
                await self._run_connected()
            # Any error: without this task, this process would find other processes' jobs only by
            # polling.
            except Exception as error:
                self._metrics.notify_failures.inc()
                self._log_lost(error)
                await asyncio.sleep(1)

    def _log_lost(self, error: Exception) -> None:
        """Logs once that the connection was lost, and not again for each failed attempt to
        reconnect."""
        if not self._is_lost:
            log.warning("LISTEN/NOTIFY connection lost", detail=describe(error, self._connector.dsn))
        self._is_lost = True

    def _log_restored(self) -> None:
        if self._is_lost:
            log.info("LISTEN/NOTIFY connection restored")
        self._is_lost = False

    async def _run_connected(self) -> None:
        connection = await self._connector.connect(
            timeout=KEEPALIVE_SECONDS, statement_cache_size=0, server_settings={"application_name": "longshore-wakeups"}
        )
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await connection.add_listener(CHANNEL, self._on_notification)
            self._log_restored()
            self._publish(None)  # notifications sent while there was no connection are lost
            while True:
                await self._send(connection)
        finally:
            connection.terminate()

    async def _send(self, connection: Connection) -> None:
        """Waits for pending notifications, sends them in one NOTIFY, and then pauses to limit the
        rate of NOTIFYs. Sends a keepalive if nothing is pending for KEEPALIVE_SECONDS."""
        try:
            # Not wait_for: until Python 3.12 it loses a cancellation that arrives with the event.
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await self._has_pending.wait()
        except TimeoutError:
            await connection.execute("SELECT 1", timeout=KEEPALIVE_SECONDS)
            return
        ids = self._pop_pending()
        await connection.execute(_NOTIFY % " ".join([self._sender, *ids]), timeout=KEEPALIVE_SECONDS)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS) if self._has_pending.is_set() else MIN_PAUSE_SECONDS

    def _pop_pending(self) -> list[str]:
        ids = [str(self._pending.pop()) for _ in range(min(MAX_IDS, len(self._pending)))]
        if not self._pending:
            self._has_pending.clear()
        return ids

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *ids = str(payload).split()
        if sender == self._sender:
            return
        for queue_id in ids:
            self._publish(int(queue_id) if queue_id.isdigit() else None)

    def _publish(self, queue_id: int | None) -> None:
        """Publishes a notification as an event. If `queue_id` is None, notifications may have been
        lost, so it publishes that any queue or the configuration may have changed."""
        if queue_id is None or queue_id == CONFIG_ID:
            self._events.publish(ConfigNotified())
        if queue_id != CONFIG_ID:
            self._events.publish(QueueReady(queue_id))
