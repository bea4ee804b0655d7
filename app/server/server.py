"""uvicorn with hardened connections; on SIGTERM parked polls are answered first (R15), and each step is one log line."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app.server.connection import HardenedConnection
from app.server.lifecycle_log import LifecycleLog
from app.server.limits import ConnectionLimits
from app.server.listener import base_url, listen
from app.settings import Settings

Listening = Callable[[str, int], None]

OTHER_FILES = 300  # beside clients: the database's connections, logs, what libraries open


class Server(uvicorn.Server):
    """`timeout_graceful_shutdown` alone would reset every parked poll: they are woken before uvicorn starts to wait."""

    def __init__(self, app: FastAPI, settings: Settings, on_listening: Listening) -> None:
        self._edge = ConnectionLimits(
            settings, app.state.broker.infra.metrics, app.state.hot, _raise_file_limit(settings.max_connections)
        )
        super().__init__(_config(app, settings, self._edge))
        self._app = app
        self._on_listening = on_listening
        self._lifecycle = LifecycleLog(app.version, app.state.broker, self.server_state)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            self._edge.start(lambda: len(self.server_state.connections))
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            await self._lifecycle.started(base_url(self.servers[0].sockets[0]))
            self._on_listening(host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        leases = await self._lifecycle.count_leases()  # before the database connections are closed
        await super().shutdown(sockets)
        self._edge.stop()
        self._lifecycle.stopped(leases)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(self._drain, signal.Signals(sig).name)
        super().handle_exit(sig, frame)

    def _drain(self, reason: str) -> None:
        """Whoever is answered from now on hears that the connection ends with it."""
        self._lifecycle.draining(reason)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._app.state.drain()


def _connection_class(shared: ConnectionLimits) -> type[HardenedConnection]:
    class Guarded(HardenedConnection):
        edge = shared

    return Guarded


def _config(app: FastAPI, settings: Settings, edge: ConnectionLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=_connection_class(edge),
        ws="none",
        proxy_headers=False,  # nobody here asks who the client is
        reset_contextvars=True,  # a request sent ahead must not inherit what the one before it has done
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
    )


def _raise_file_limit(connections: int) -> int:
    """As many as asked for, or as the operating system lets us open. Without a file left to open we would lose the database too."""
    if sys.platform == "win32":
        return connections
    import resource

    wanted = connections + connections // 10 + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(connections, (soft - OTHER_FILES) * 10 // 11))


def tune_gc() -> None:
    """What is there when serving begins stays: it need not be looked at again. And a request makes hundreds of objects, few of them in
    circles: with Python's own 700 the collector took 8 % of the time. With 50,000 large batches took some per cent less, but a hundred
    large uploads left 66 MiB behind, not 50."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def _shorten_switch_interval() -> None:
    """Makes a thread that checks a large body yield to the event loop after 1 ms. With Python's default of 5 ms the event loop waited that
    long whenever it polled its sockets, and a call that takes 0.5 ms alone took 15 ms."""
    sys.setswitchinterval(0.001)


def serve(app: FastAPI, settings: Settings, listener: socket.socket, *, on_listening: Listening) -> None:
    """Blocks until SIGTERM or SIGINT. A second SIGINT does not wait for running requests. The listener is bound by the caller: uvicorn
    would end the process on its own when the port is taken."""
    tune_gc()
    _shorten_switch_interval()
    server = Server(app, settings, on_listening)
    listen(listener)
    server.run([listener])
