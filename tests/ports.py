"""Ports for brokers that tests and benchmarks start as processes."""

import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserves a free port, so that the kernel assigns it to no other process.

    A broker can bind the port too, because this socket never listens."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


def wait_until_serving(base: str, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not is_serving(base):
        assert process.poll() is None, f"the broker ended with status {process.returncode}"
        assert time.monotonic() < deadline, "the broker does not serve"
        time.sleep(0.02)


def is_serving(base: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{base}/livez", timeout=60).status_code == 200
    return False


def free_ports(count: int) -> list[int]:
    """Returns different free ports, by binding all of them at once.

    They are below the ephemeral ports of the kernel: no client connection may get a broker's port
    while the broker is down."""
    listeners: list[socket.socket] = []
    while len(listeners) < count:
        with suppress(OSError):
            listeners.append(socket.create_server(("127.0.0.1", random.randint(10_000, 30_000))))
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
