"""Measures how long /livez takes while a request runs, from a separate process."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.conftest import wait_until


class Call(NamedTuple):
    """A call of /livez. `took` is shorter than from `began` to `ended` if the machine was busy."""

    began: float
    ended: float
    took: float


class Probes:
    """The calls of a separate process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._calls: list[Call] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # the last may be incomplete
                    self._calls.append(Call(*map(float, line.split())))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._reader.join(30)

    def slowest(self, request: Callable[[], object]) -> float:
        """The longest call that overlaps the request; 0 if the request ran between two calls."""
        began = time.monotonic()
        request()
        ended = time.monotonic()
        # Then every call that began before `ended` has been printed.
        wait_until(lambda: self._calls and self._calls[-1].began > ended)
        return max((call.took for call in self._calls if call.ended > began and call.began < ended), default=0.0)


@contextmanager
def probing(base: str, broker_pid: int) -> Iterator[Probes]:
    url = urlsplit(base)
    command = [sys.executable, "-m", "tests.http.livez_prober", str(url.hostname), str(url.port), str(broker_pid)]
    probes = Probes(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        yield probes
    finally:
        probes.stop()
