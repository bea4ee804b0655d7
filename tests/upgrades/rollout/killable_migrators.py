"""Migrators that a test can kill after a number of steps.

- `python -m tests.upgrades.rollout.killable_migrators` imports everything once and forks a migrator for each
  DSN that it reads, so that a hundred migrators take only seconds. Its argument is the folder of the migrations.
- A proxy in front of Postgres counts their steps, and kills a migrator after a given number."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

LOCKED = b"pg_try_advisory_lock"  # earlier statements only read, and set session parameters
STEPS = (b"Q", b"E")  # protocol messages: a simple query, the execution of a prepared statement


class Migrators:
    """Starts migrators one after another, each in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._requests, self._replies = process.stdin, process.stdout

    def start(self, dsn: str) -> int:
        self._requests.write(f"{dsn}\n")
        self._requests.flush()
        return int(self._replies.readline())

    def wait(self) -> int:
        """Returns the exit status: 0, or minus the number of the signal."""
        return int(self._replies.readline())


@contextmanager
def migrators(root: Path) -> Iterator[Migrators]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.upgrades.rollout.killable_migrators", str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Migrators(process)
        assert process.stdin is not None
        process.stdin.close()


class StepCounter:
    """Counts the steps in the bytes of a client, from the moment it holds the migration lock."""

    def __init__(self) -> None:
        self.steps = 0
        self._buffer = b""
        self._has_started = False
        self._holds_lock = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while message := self._next_message():
            self._holds_lock |= LOCKED in message
            self.steps += self._holds_lock and message[:1] in STEPS

    def _next_message(self) -> bytes | None:
        """A message is a type byte (missing in the first message) and a length that includes
        itself."""
        begin = 1 if self._has_started else 0
        end = begin + int.from_bytes(self._buffer[begin : begin + 4], "big")
        if len(self._buffer) < begin + 4 or len(self._buffer) < end:
            return None
        message, self._buffer, self._has_started = self._buffer[:end], self._buffer[end:], True
        return message


class CountingProxy:
    """A proxy in front of Postgres.

    After `steps` steps it calls `then` and forwards nothing more."""

    def __init__(self, dsn: str, folder: Path, steps: int, then: Callable[[], None]) -> None:
        url = urlsplit(dsn)
        query = parse_qs(url.query)
        self._target = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._max_steps, self._then = steps, then
        self.dsn = url._replace(query=f"host={folder}&port=5432").geturl()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, socket.socket(socket.AF_UNIX) as server:
                    server.connect(self._target)
                    back = threading.Thread(target=_forward, args=(server, client), daemon=True)
                    back.start()
                    self._forward_and_count(client, server)
                    server.shutdown(socket.SHUT_RDWR)
                    back.join(30)

    def _forward_and_count(self, client: socket.socket, server: socket.socket) -> None:
        counter = StepCounter()
        while data := client.recv(65536):
            counter.feed(data)
            server.sendall(data)
            if counter.steps >= self._max_steps:
                self._then()
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join(30)
        self._listener.close()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)  # a client that terminates the session waits for this


@contextmanager
def counting_proxy(dsn: str, steps: int, then: Callable[[], None]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        proxy = CountingProxy(dsn, Path(folder), steps, then)
        try:
            yield proxy.dsn
        finally:
            proxy.close()


def _main() -> None:
    from app.db import migrations
    from app.db.tables import metadata

    migrations.ROOT = Path(sys.argv[1])
    assert metadata.tables, "imported before the first fork, like everything else that a migration needs"
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            migrations.upgrade(line.strip())
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
