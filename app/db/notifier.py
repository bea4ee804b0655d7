"""Wake-ups between processes: one coalesced NOTIFY per beat from a connection of its own, and a LISTEN that proves itself.

Nothing depends on them: a lost wake-up costs the time until the next poll, never a job.
"""

import asyncio
from collections.abc import Callable
from uuid import uuid4

from app.db.failure_causes import describe
from app.db.primary import Connection, PrimaryConnector
from app.log import log
from app.metrics import Metrics

CHANNEL = "longshore"
# NOTIFY takes a cluster-wide lock: never inside an enqueue. Who has seldom something to say need not wait; while words keep coming the
# pauses grow, to a hundred times a second.
SHORTEST_BEAT, LONGEST_BEAT = 0.001, 0.01
PROOF_SECONDS = 2.0  # a black-holed connection never reports its death, so it has to answer now and then
MAX_TOPICS = 200  # a NOTIFY payload holds 8000 bytes; topics are short numbers

# What a crash may lose need not be flushed; with that lock held nobody should wait for a disk. For this statement alone: behind a pooler
# the session is not ours. As one text, which is one round trip; what is in it is made of hex digits and spaces.
_NOTIFY = f"SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '%s'"

Listener = Callable[[int | None], None]


class Notifier:
    """Topics are numbers (queue ids). Listeners hear topics of other processes; `None` means: look everywhere."""

    def __init__(self, dsn: str, metrics: Metrics, *, enabled: bool) -> None:
        self._servers = PrimaryConnector(dsn)
        self._metrics = metrics
        self._enabled = enabled
        self._sender = uuid4().hex
        self._listeners: list[Listener] = []
        self._pending: set[int] = set()
        self._any_pending = asyncio.Event()
        self._beat = SHORTEST_BEAT
        self._lost = False

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def announce(self, topic: int) -> None:
        """Tells the other processes, soon. The own process is woken directly by whoever calls this."""
        if self._enabled:
            self._pending.add(topic)
            self._any_pending.set()

    async def run(self) -> None:
        """Sends and listens for ever on one connection, and makes a new one when it fails."""
        while self._enabled:
            try:
                await self._run_connected()
            except (
                Exception
            ) as error:  # whatever it was: without this task other processes would be heard by polling only
                self._metrics.notify_failures.inc()
                self._note_lost(error)
                await asyncio.sleep(1)

    def _note_lost(self, error: Exception) -> None:
        """One line for each loss, however many attempts to connect fail after it."""
        if not self._lost:
            log.warning("wake-up connection lost", detail=describe(error, self._servers.dsn))
        self._lost = True

    def _note_connected(self) -> None:
        if self._lost:
            log.info("wake-up connection restored")
        self._lost = False

    async def _run_connected(self) -> None:
        connection = await self._servers.connect(
            timeout=PROOF_SECONDS, statement_cache_size=0, server_settings={"application_name": "longshore-wakeups"}
        )
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await connection.add_listener(CHANNEL, self._heard)
            self._note_connected()
            self._tell(None)  # whatever was announced while nobody listened
            while True:
                await self._send_or_prove(connection)
        finally:
            connection.terminate()

    async def _send_or_prove(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(
                PROOF_SECONDS
            ):  # not wait_for: until Python 3.12 it loses a cancel that comes with the event
                await self._any_pending.wait()
        except TimeoutError:
            await connection.execute("SELECT 1", timeout=PROOF_SECONDS)
            return
        topics = self._take_pending()
        await connection.execute(_NOTIFY % " ".join([self._sender, *topics]), timeout=PROOF_SECONDS)
        await asyncio.sleep(self._beat)
        self._beat = min(2 * self._beat, LONGEST_BEAT) if self._any_pending.is_set() else SHORTEST_BEAT

    def _take_pending(self) -> list[str]:
        topics = [str(self._pending.pop()) for _ in range(min(MAX_TOPICS, len(self._pending)))]
        if not self._pending:
            self._any_pending.clear()
        return topics

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split()
        if sender == self._sender:
            return
        for topic in topics:
            self._tell(int(topic) if topic.isdigit() else None)

    def _tell(self, topic: int | None) -> None:
        for listener in self._listeners:
            listener(topic)
