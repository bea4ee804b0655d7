"""A way to Postgres that can be cut, or swallow what goes through it: a socket of the test's own."""

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
    def __init__(self, dsn: str, folder: Path) -> None:
        place = urlsplit(dsn)
        found = parse_qs(place.query)
        self._behind = f"{found['host'][0]}/.s.PGSQL.{found['port'][0]}"
        self._file = folder / f".s.PGSQL.{PORT}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._file))
        self._listener.listen(100)
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._swallows: set[Direction] = set()
        self.dsn = place._replace(query=f"host={folder}&port={PORT}").geturl()
        self._start(self._accept)

    def cut(self) -> None:
        """Both ends of every connection: neither side hears anything more."""
        while self._ends:
            with suppress(OSError):
                self._ends.pop().shutdown(socket.SHUT_RDWR)

    def swallow(self, *directions: Direction) -> None:
        """From now on bytes in these directions vanish, on old and new connections; with none, they pass again."""
        self._swallows = set(directions)

    def refuse(self) -> None:
        """As if the server were gone."""
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
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._behind)
                self._ends += [near, far]
                self._start(self._forward, near, far, "requests")
                self._start(self._forward, far, near, "replies")

    def _forward(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with source, suppress(OSError):
            while data := source.recv(65536):
                if direction not in self._swallows:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def _start(self, run: Callable[..., None], *args: socket.socket | Direction) -> None:
        self._threads.append(threading.Thread(target=run, args=args, name="proxy", daemon=True))
        self._threads[-1].start()


@contextmanager
def proxy_to(dsn: str) -> Iterator[Proxy]:
    """In a folder with a short name: the path of a socket may have a hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(dsn, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()
