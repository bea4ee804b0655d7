"""Wake-ups between processes: one connection that sends coalesced NOTIFYs and LISTENs.

No job depends on them: a lost wake-up costs the time until the next poll.

    connecting -> listening    LISTEN is set up; QueueReady(None) is published, because
                               notifications sent while there was no connection are lost
    listening  -> listening    sends the pending topics or, after 2 s without any, proves the connection alive
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
CONFIG_TOPIC = 0  # no queue has this id
# NOTIFY takes a cluster-wide lock, so it never runs inside an enqueue. A process with few
# announcements sends each at once; while they keep coming the pauses grow, up to a rate of a
# hundred a second.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.01
# A black-holed connection never reports that it is dead, so it must answer a statement regularly.
PROOF_SECONDS = 2.0
MAX_TOPICS = 200  # a NOTIFY payload holds 8000 bytes; topics are short numbers

# A wake-up may be lost in a crash, so its commit need not be flushed: with the cluster-wide lock
# held, no transaction should wait for a disk. SET LOCAL, because behind a pooler the session is
# shared. One text is one round trip; it needs no escaping, because it holds only hex digits and
# spaces.
_NOTIFY = f"SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '%s'"


class Notifier:
    """Notifies other processes of queues with claimable jobs, and publishes their notifications as
    events.

    Topics are queue ids, or CONFIG_TOPIC for a changed configuration.
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
        self.announce(queue_id_of(event.lane))

    def announce(self, topic: int) -> None:
        """Notifies the other processes soon. The caller wakes its own process directly."""
        if self._enabled:
            self._pending.add(topic)
            self._has_pending.set()

    async def run(self) -> None:
        """Sends and listens forever on one connection, and replaces the connection when it
        fails."""
        while self._enabled:
            try:
                await self._run_connected()
            # Any error: without this task, other processes are noticed by polling only.
            except Exception as error:
                self._metrics.notify_failures.inc()
                self._log_lost(error)
                await asyncio.sleep(1)

    def _log_lost(self, error: Exception) -> None:
        """Logs one line per loss, however many attempts to connect fail after it."""
        if not self._is_lost:
            log.warning("wake-up connection lost", detail=describe(error, self._connector.dsn))
        self._is_lost = True

    def _log_restored(self) -> None:
        if self._is_lost:
            log.info("wake-up connection restored")
        self._is_lost = False

    async def _run_connected(self) -> None:
        connection = await self._connector.connect(
            timeout=PROOF_SECONDS, statement_cache_size=0, server_settings={"application_name": "longshore-wakeups"}
        )
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await connection.add_listener(CHANNEL, self._on_notification)
            self._log_restored()
            self._publish(None)  # notifications sent while there was no connection are lost
            while True:
                await self._send_or_prove(connection)
        finally:
            connection.terminate()

    async def _send_or_prove(self, connection: Connection) -> None:
        try:
            # Not wait_for: until Python 3.12 it loses a cancellation that arrives with the event.
            async with asyncio.timeout(PROOF_SECONDS):
                await self._has_pending.wait()
        except TimeoutError:
            await connection.execute("SELECT 1", timeout=PROOF_SECONDS)
            return
        topics = self._pop_pending()
        await connection.execute(_NOTIFY % " ".join([self._sender, *topics]), timeout=PROOF_SECONDS)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS) if self._has_pending.is_set() else MIN_PAUSE_SECONDS

    def _pop_pending(self) -> list[str]:
        topics = [str(self._pending.pop()) for _ in range(min(MAX_TOPICS, len(self._pending)))]
        if not self._pending:
            self._has_pending.clear()
        return topics

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split()
        if sender == self._sender:
            return
        for topic in topics:
            self._publish(int(topic) if topic.isdigit() else None)

    def _publish(self, topic: int | None) -> None:
        """None: topics may have been lost."""
        if topic is None or topic == CONFIG_TOPIC:
            self._events.publish(ConfigNotified())
        if topic != CONFIG_TOPIC:
            self._events.publish(QueueReady(topic))
