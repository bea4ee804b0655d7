"""What uvicorn's server requires of a connection class, and gives it: see `app.server.server`.

uvicorn does not document it. These tests fail if it changes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState


async def lifespan_only(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    scope["state"]["from_lifespan"] = True
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


class MinimalConnection(asyncio.Protocol):
    """Has nothing but what uvicorn requires."""

    created: "list[MinimalConnection]"

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.state: ServerState = arguments["server_state"]
        self.is_shut_down = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.state.connections.add(self)  # type: ignore[arg-type]
        self.created.append(self)

    def shutdown(self) -> None:
        self.is_shut_down = True

    def close(self) -> None:
        self.transport.close()
        self.state.connections.discard(self)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (uvicorn sets no event)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_server() -> AsyncIterator[tuple[uvicorn.Server, MinimalConnection]]:
    """A server and one connection to it. The server is stopping at the end, and must end."""

    class Connection(MinimalConnection):
        created: list[MinimalConnection] = []  # noqa: RUF012

    server = uvicorn.Server(uvicorn.Config(lifespan_only, port=0, http=Connection, log_config=None))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    _, client = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    await until(lambda: Connection.created)
    yield server, Connection.created[0]
    client.close()
    await asyncio.wait_for(serving, 60)


def test_connection_is_created_with_four_keywords() -> None:
    async def run() -> None:
        async with running_server() as (server, connection):
            arguments = connection.arguments
            assert arguments.keys() == {"config", "server_state", "app_state", "_loop"}
            assert (arguments["config"], arguments["server_state"]) == (server.config, server.server_state)
            assert arguments["app_state"] == {"from_lifespan": True}
            assert arguments["_loop"] in (None, asyncio.get_running_loop())
            server.should_exit = True
            connection.close()

    asyncio.run(run())


def test_default_headers_are_the_date() -> None:
    async def run() -> None:
        async with running_server() as (server, connection):
            await until(lambda: server.server_state.default_headers)
            assert [name for name, _ in connection.state.default_headers] == [b"date", b"server"]
            server.should_exit = True
            connection.close()

    asyncio.run(run())


def test_stopping_server_shuts_connections_down_and_waits_for_them_and_for_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "uvicorn.error")

    async def run() -> None:
        async with running_server() as (server, connection):
            is_done = asyncio.Event()
            task: asyncio.Task[Any] = asyncio.create_task(is_done.wait())
            connection.state.tasks.add(task)
            server.should_exit = True
            await until(lambda: "Waiting for connections to close" in caplog.text)
            assert connection.is_shut_down
            connection.close()
            await until(lambda: "Waiting for background tasks to complete" in caplog.text)
            is_done.set()
            connection.state.tasks.discard(task)

    asyncio.run(run())


def test_stopping_server_cancels_tasks_after_its_timeout() -> None:
    async def run() -> None:
        async with running_server() as (server, connection):
            task: asyncio.Task[Any] = asyncio.create_task(asyncio.Event().wait())
            connection.state.tasks.add(task)
            connection.close()
            server.config.timeout_graceful_shutdown = 0
            server.should_exit = True
            await until(task.cancelled)

    asyncio.run(run())
