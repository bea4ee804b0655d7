"""Runs uvicorn with hardened connections and a graceful drain.

On SIGTERM the broker answers parked polls first (docs/reliability/rules.md#r15). It logs one line
when it starts, one when it drains and one when it stops.

uvicorn loads the configuration, handles signals and starts the server. It creates each connection
with the keywords `config`, `server_state`, `app_state` and `_loop`. It requires of a connection:

- while the connection is open, it is in `server_state.connections`
- while a request is running, its task is in `server_state.tasks`
- `shutdown()` closes the connection, at once or after the response to its newest request

When uvicorn stops, it waits until both sets are empty. Every second it renews the Date header in
`server_state.default_headers`. `tests/http/test_uvicorn_contract.py` fails if uvicorn changes any
of this.
"""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from app.server.connection import HardenedConnection
from app.server.exchange import RequestDispatcher
from app.server.lifecycle_log import LifecycleLog
from app.server.limits import ConnectionLimits
from app.server.listener import base_url, listen
from app.settings import Settings

Listening = Callable[[str, int], None]
Stopped = Callable[[dict[str, Any]], None]

RESERVED_FILES = 300  # file descriptors for database connections, logs and libraries


class Server(uvicorn.Server):
    """uvicorn's server, which answers parked polls before uvicorn waits for running requests.

    uvicorn's `timeout_graceful_shutdown` alone would reset every parked poll.
    """

    def __init__(
        self, app: FastAPI, settings: Settings, on_listening: Listening, on_stopped: Stopped = lambda _fields: None
    ) -> None:
        self._limits = ConnectionLimits(
            settings, app.state.broker.infra.metrics, _raise_file_limit(settings.max_connections)
        )
        super().__init__(_config(app, settings, make_connection_class(self._limits, app.state.dispatcher)))
        self._app = app
        self._on_listening = on_listening
        self._on_stopped = on_stopped
        self._lifecycle = LifecycleLog(app.version, app.state.broker, self.server_state)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            self._limits.start(lambda: len(self.server_state.connections))
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            await self._lifecycle.started(base_url(self.servers[0].sockets[0]))
            self._on_listening(host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        leases = await self._lifecycle.count_leases()  # before the database connections are closed
        await super().shutdown(sockets)
        self._limits.stop()
        self._on_stopped(self._lifecycle.stopped(leases))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(self._drain, signal.Signals(sig).name)
        super().handle_exit(sig, frame)

    def _drain(self, reason: str) -> None:
        """Answers parked polls, and closes each connection, at once or after the response to its
        newest request."""
        self._lifecycle.draining(reason)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._app.state.broker.drain()


def make_connection_class(limits: ConnectionLimits, dispatcher: RequestDispatcher) -> type[HardenedConnection]:
    """Returns a subclass of HardenedConnection that uses these limits and this dispatcher. uvicorn
    needs a class, from which it creates the connections."""

    class ServerConnection(HardenedConnection):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(limits, dispatcher, **arguments)

    return ServerConnection


def _config(app: FastAPI, settings: Settings, connection_class: type[HardenedConnection]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=connection_class,
        ws="none",
        proxy_headers=False,  # the broker does not use the client's address
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
    )


def _raise_file_limit(max_connections: int) -> int:
    """Raises the limit of open files for `max_connections`. Returns `max_connections`, or a smaller
    number if the system does not allow as many files.

    Without file descriptors the broker could not connect to its database either, so it serves fewer
    connections instead.
    """
    if sys.platform == "win32":
        return max_connections
    import resource

    needed = max_connections + max_connections // 10 + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(max_connections, (soft - RESERVED_FILES) * 10 // 11))


def tune_gc() -> None:
    """Makes the garbage collector run less often, and visit fewer objects.

    Freezes the objects that exist now, so that no collection visits them again. Raises the
    threshold to 5,000: a request creates hundreds of objects, few of them in cycles, and with
    Python's default of 700 the collector took 8 % of the time. With 50,000, large batches took a
    few per cent less time, but after a hundred large uploads the process kept 66 MiB instead of 50.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def _shorten_switch_interval() -> None:
    """Lowers Python's switch interval, so that a thread that checks a large body releases the GIL
    to the event loop after 1 ms.

    With Python's default of 5 ms, the event loop waited 5 ms for the thread whenever it polled its
    sockets. A request that otherwise takes 0.5 ms took 15 ms.
    """
    sys.setswitchinterval(0.001)


def serve(
    app: FastAPI, settings: Settings, listener: socket.socket, *, on_listening: Listening, on_stopped: Stopped
) -> None:
    """Serves requests until SIGTERM or SIGINT, and then waits for running requests. After a second
    SIGINT, does not wait.

    `listener` must be bound, because uvicorn would exit the process if the port is in use.
    """
    tune_gc()
    _shorten_switch_interval()
    server = Server(app, settings, on_listening, on_stopped)
    listen(listener)
    server.run([listener])
