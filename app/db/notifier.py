"""Sends wake-ups to the other processes, and receives wake-ups from them, on one connection.

Wake-ups in quick succession share one NOTIFY. A lost wake-up loses no job: the job waits until the
ready poller finds it.

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
CONFIG_ID = 0  # in place of a queue id, means the configuration; no queue has the id 0
# Pause after a NOTIFY. NOTIFY takes a cluster-wide lock, so it never runs inside an enqueue. A
# process with few notifications sends each at once. While more keep coming, the pause doubles up to
# 10 ms, which limits the process to a hundred NOTIFYs a second.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.01
# Interval and timeout of keepalives. If the network drops every packet, the connection never
# reports that it is dead, so the server must answer a statement regularly.
KEEPALIVE_SECONDS = 2.0
MAX_IDS = 200  # in one NOTIFY: its payload holds 8000 bytes, and ids are short numbers

# - synchronous_commit is off, because a transaction that holds the cluster-wide lock must not wait
#   for a disk. A crash may then lose a wake-up, but no job.
# - SET LOCAL, because behind a pooler other clients share the session.
# - Both statements are one text, so that they need one round trip.
# - The payload needs no escaping, because it contains only hex digits and spaces.
_NOTIFY = f"SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '%s'"


class Notifier:
    """Notifies the other processes when a queue has claimable jobs or the configuration has
    changed. Publishes the notifications of other processes as events.

    The payload of a NOTIFY is the id of the sending process and a list of queue ids. CONFIG_ID in
    the list says that the configuration has changed.
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
        """Notifies the other processes, by the next NOTIFY, that the configuration has changed.
        `ConfigVersions.announce` updates this process directly."""
        self._announce(CONFIG_ID)

    def _announce(self, queue_id: int) -> None:
        if self._enabled:
            self._pending.add(queue_id)
            self._has_pending.set()

    async def run(self) -> None:
        """Sends and receives notifications forever, on one connection. Opens a new connection if
        the old one fails."""
        while self._enabled:
            try:
                await self._run_connected()
            # Catches all errors: without this task, this process would find other processes' jobs
            # only by polling.
            except Exception as error:
                self._metrics.notify_failures.inc()
                self._log_lost(error)
                await asyncio.sleep(1)

    def _log_lost(self, error: Exception) -> None:
        """Logs that the connection was lost, but not each failed attempt to reconnect."""
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
            # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that arrives at the
            # same time as the event.
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
        """Publishes the event for one entry of a notification: ConfigNotified for CONFIG_ID,
        QueueReady for a queue id. Publishes both events for None, which means that notifications
        may have been lost."""
        if queue_id is None or queue_id == CONFIG_ID:
            self._events.publish(ConfigNotified())
        if queue_id != CONFIG_ID:
            self._events.publish(QueueReady(queue_id))
