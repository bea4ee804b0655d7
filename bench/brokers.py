"""Server processes of ours, started as an operator starts them, and load processes against them."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import msgspec

from app.db.embedded.processes import die_with
from bench.load.order import Figures, Order
from tests.ports import reserved_port, wait_until_serving

PATIENCE = 600.0  # for a load: it ends by itself, or hangs for good


class LoadFailed(Exception):
    """A wrong answer, a lost job, or a load that does not end."""


class Brokers:
    """Processes that serve one database, each on a port of its own."""

    def __init__(self, dsn: str, **settings: str) -> None:
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
        self._environment |= {"DATABASE_URL": dsn, "LONGSHORE_LOG_LEVEL": "error"}
        self._environment |= {f"LONGSHORE_{name.upper()}": value for name, value in settings.items()}
        self._processes: list[subprocess.Popen[str]] = []
        self.ports: list[int] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def command(self, *words: str) -> str:
        """`python -m app ...` on the same database; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "app", *words], env=self._environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def start(self, processes: int) -> None:
        with ExitStack() as reservations:
            self.ports = [reservations.enter_context(reserved_port()) for _ in range(processes)]
            self._processes = [self._serve(port) for port in self.ports]
            for port, served in zip(self.ports, self._processes, strict=True):
                wait_until_serving(f"http://127.0.0.1:{port}", served)

    def _serve(self, port: int) -> "subprocess.Popen[str]":
        """In a session of its own: Ctrl-C is for us, and we stop it. It ends when we end."""
        return subprocess.Popen(
            [sys.executable, "-m", "app", "serve"],
            env=self._environment | {"LONGSHORE_PORT": str(port)},
            text=True,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),
        )

    def stop(self) -> None:
        for served in self._processes:
            served.terminate()
        for served in self._processes:
            served.wait(60)
        self._processes = []


async def load(order: Order) -> Figures:
    """In a process of its own. Its complaints are ours."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        told, complaints = await asyncio.wait_for(process.communicate(msgspec.json.encode(order)), PATIENCE)
    except BaseException:
        process.kill()
        raise
    if process.returncode != 0:
        raise LoadFailed(f"the load {order.kind} failed: {complaints.decode(errors='replace')[-2000:].strip()}")
    return msgspec.json.decode(told, type=Figures)
