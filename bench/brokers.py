"""Broker processes, started as an operator starts them, and load processes against them."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import msgspec

from app.db.embedded.processes import die_with_parent
from bench.load.order import Figures, Order
from tests.ports import reserved_port, wait_until_serving

TIMEOUT_SECONDS = 600.0  # of a load process: it ends on its own, or hangs forever


class LoadFailed(Exception):
    """An unexpected response, a lost job, or a load process that does not end."""


class Brokers:
    """Broker processes on one database, each on its own port."""

    def __init__(self, dsn: str, **settings: str) -> None:
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
        self._environment |= {"DATABASE_URL": dsn, "LONGSHORE_LOG_LEVEL": "error"}
        self._environment |= {f"LONGSHORE_{name.upper()}": value for name, value in settings.items()}
        self._processes: list[subprocess.Popen[str]] = []
        self.ports: list[int] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def command(self, *arguments: str) -> str:
        """Runs `python -m app ...` on the same database, and returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "app", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def start(self, processes: int) -> None:
        with ExitStack() as reservations:
            self.ports = [reservations.enter_context(reserved_port()) for _ in range(processes)]
            self._processes = [self._serve(port) for port in self.ports]
            for port, process in zip(self.ports, self._processes, strict=True):
                wait_until_serving(f"http://127.0.0.1:{port}", process)

    def _serve(self, port: int) -> "subprocess.Popen[str]":
        """Starts a broker in a session of its own, so that Ctrl-C reaches only the benchmark, which
        stops it.

        The broker ends when the benchmark ends.
        """
        return subprocess.Popen(
            [sys.executable, "-m", "app", "serve"],
            env=self._environment | {"LONGSHORE_PORT": str(port)},
            text=True,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)
        self._processes = []


async def load(order: Order) -> Figures:
    """Runs a load in a process of its own. Raises LoadFailed with its error output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        figures, errors = await asyncio.wait_for(process.communicate(msgspec.json.encode(order)), TIMEOUT_SECONDS)
    except BaseException:
        process.kill()
        raise
    if process.returncode != 0:
        raise LoadFailed(f"the load {order.kind} failed: {errors.decode(errors='replace')[-2000:].strip()}")
    return msgspec.json.decode(figures, type=Figures)
