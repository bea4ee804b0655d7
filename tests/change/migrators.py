"""Migrators that are killed. `python -m tests.change.migrators` has imported everything and forks one for each DSN that it reads, so that
a hundred of them cost seconds; a way to Postgres counts what they do and kills one after so many steps."""

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

LOCKED = b"pg_try_advisory_lock"  # what comes before only asks and sets parameters of the session
STEPS = (b"Q", b"E")  # of the protocol: a simple query, and the execution of a prepared one


class Migrators:
    """One after the other, each a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asked, self._told = process.stdin, process.stdout

    def start(self, dsn: str) -> int:
        self._asked.write(f"{dsn}\n")
        self._asked.flush()
        return int(self._told.readline())

    def wait(self) -> int:
        """How it ended: 0, or which signal below zero."""
        return int(self._told.readline())


@contextmanager
def migrators() -> Iterator[Migrators]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.change.migrators"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Migrators(process)
        assert process.stdin is not None
        process.stdin.close()


class Spoken:
    """Counts the steps in what a client sends, from the moment it holds the migrators' lock."""

    def __init__(self) -> None:
        self.steps = 0
        self._rest = b""
        self._begun = False
        self._locked = False

    def hear(self, data: bytes) -> None:
        self._rest += data
        while message := self._message():
            self._locked |= LOCKED in message
            self.steps += self._locked and message[:1] in STEPS

    def _message(self) -> bytes | None:
        """A type, which only the very first message has not, and a length that counts itself."""
        begin = 1 if self._begun else 0
        end = begin + int.from_bytes(self._rest[begin : begin + 4], "big")
        if len(self._rest) < begin + 4 or len(self._rest) < end:
            return None
        message, self._rest, self._begun = self._rest[:end], self._rest[end:], True
        return message


class Way:
    """A socket in front of Postgres; after the given number of steps has gone through, `then` is called, and nothing more goes through."""

    def __init__(self, dsn: str, folder: Path, steps: int, then: Callable[[], None]) -> None:
        place = urlsplit(dsn)
        found = parse_qs(place.query)
        self._behind = f"{found['host'][0]}/.s.PGSQL.{found['port'][0]}"
        self._most, self._then = steps, then
        self.dsn = place._replace(query=f"host={folder}&port=5432").geturl()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with near, socket.socket(socket.AF_UNIX) as far:
                    far.connect(self._behind)
                    back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
                    back.start()
                    self._listen_in(near, far)
                    far.shutdown(socket.SHUT_RDWR)
                    back.join(30)

    def _listen_in(self, near: socket.socket, far: socket.socket) -> None:
        spoken = Spoken()
        while data := near.recv(65536):
            spoken.hear(data)
            far.sendall(data)
            if spoken.steps >= self._most:
                self._then()
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join(30)
        self._listener.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)  # who says goodbye waits for this


@contextmanager
def way_to(dsn: str, steps: int, then: Callable[[], None]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        way = Way(dsn, Path(folder), steps, then)
        try:
            yield way.dsn
        finally:
            way.close()


def _main() -> None:
    from app.db import migrations
    from app.db.tables import metadata

    assert metadata.tables, "imported before the first fork, like everything that migrating needs"
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
