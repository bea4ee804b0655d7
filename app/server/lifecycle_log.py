"""Logs when a broker starts, drains and stops. These lines are the first to read after an
incident."""

import asyncio
from contextlib import suppress
from typing import Any

from uvicorn.server import ServerState

from app.db import migrations
from app.log import log

QUERY_SECONDS = 1  # a database that hangs must delay neither the start nor the shutdown


class LifecycleLog:
    """Writes one log line when a broker starts, one when it drains and one when it stops.

    Every line contains the release, the schema revision and the address, to identify the broker.
    """

    def __init__(self, release: str, broker: Any, state: ServerState) -> None:
        self._broker = broker
        self._state = state
        self._log = log.bind(release=release)
        self._revision: str | None = None

    async def started(self, address: str) -> None:
        self._revision = await self._schema()
        self._log = self._log.bind(schema=self._revision, address=address)
        self._log.info("broker started")

    def draining(self, reason: str) -> None:
        self._log.info(
            "broker draining", reason=reason, parked_polls=self._broker.pollers.open_claims, **self._open_counts()
        )

    def stopped(self, leases: int | None) -> dict[str, Any]:
        """Logs the numbers of open requests, open connections and leases. Returns these numbers and
        the schema revision, as fields for the last log line, `shutdown complete`.

        `leases` is the number of leases on the database, of all brokers: workers keep their leases
        when a broker stops, and settle them with any other broker.
        """
        running = {"leases": leases, **self._open_counts()}
        self._log.info("broker stopped", **running)
        return {"schema": self._revision, **running}

    async def count_leases(self) -> int | None:
        """Counts the leases on the database. Returns None if the database does not answer."""
        with suppress(Exception):
            async with asyncio.timeout(QUERY_SECONDS):
                leases: int = await self._broker.stats.count_leases()
                return leases
        return None

    async def _schema(self) -> str | None:
        """Reads the schema revision. Returns the text `none` if there is no schema yet, and None if
        the database does not answer.

        Skips the query if the database has not answered since the broker started.
        """
        if not self._broker.infra.clock.is_known:
            return None
        with suppress(Exception):
            async with asyncio.timeout(QUERY_SECONDS):
                return await migrations.current_revision(self._broker.infra.db) or "none"
        return None

    def _open_counts(self) -> dict[str, int]:
        """Returns the number of open requests, including parked polls, and the number of open
        connections."""
        return {"requests": len(self._state.tasks), "connections": len(self._state.connections)}
