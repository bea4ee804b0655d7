"""A proxy to Postgres that can break connections or drop bytes.

Listens on a Unix socket of its own.
"""

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

PORT = 5432

Direction = Literal["requests", "replies"]


class Proxy:
    """Forwards connections to the server of `dsn`, whose own `dsn` leads to the proxy."""

    def __init__(self, dsn: str, folder: Path) -> None:
        url = urlsplit(dsn)
        options = parse_qs(url.query)
        self._server = f"{options['host'][0]}/.s.PGSQL.{options['port'][0]}"
        self._file = folder / f".s.PGSQL.{PORT}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._file))
        self._listener.listen(100)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._dropped: set[Direction] = set()
        self.dsn = url._replace(query=f"host={folder}&port={PORT}").geturl()
        self._start(self._accept)

    def cut(self) -> None:
        """Breaks every connection, on both sides."""
        while self._sockets:
            with suppress(OSError):
                self._sockets.pop().shutdown(socket.SHUT_RDWR)

    def swallow(self, *directions: Direction) -> None:
        """Drops bytes in these directions from now on, on old and new connections.

        Without a direction, bytes pass again.
        """
        self._dropped = set(directions)

    def refuse(self) -> None:
        """Breaks every connection and accepts no new one, as if the server had exited."""
        self._file.unlink()
        self.cut()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(30)
        self.cut()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._sockets += [client, server]
                self._start(self._forward, client, server, "requests")
                self._start(self._forward, server, client, "replies")

    def _forward(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with source, suppress(OSError):
            while data := source.recv(65536):
                if direction not in self._dropped:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def _start(self, run: Callable[..., None], *args: socket.socket | Direction) -> None:
        self._threads.append(threading.Thread(target=run, args=args, name="proxy", daemon=True))
        self._threads[-1].start()


@contextmanager
def proxy_to(dsn: str) -> Iterator[Proxy]:
    """Uses a folder with a short path: the path of a socket may have about a hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(dsn, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()
