"""Real brokers for tests: in a thread (fast, with access to its services), or as processes."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from fastapi import FastAPI

from app.application import create_app
from app.broker import Broker
from app.server.server import Server
from app.settings import Settings
from tests.ports import reserved_port, wait_until_serving


class RunningBroker:
    """A broker that serves: its base URL, a client for it, and its services if it is in a
    thread."""

    def __init__(self, base: str, broker_services: Broker | None = None) -> None:
        self.base = base
        self.broker_services = broker_services
        self.http = httpx.Client(base_url=base, timeout=60)


@contextmanager
def threaded_broker(settings: Settings, dsn: str) -> Iterator[RunningBroker]:
    """Runs a broker on a real socket in a thread, without signal handlers: threads get no
    signals."""
    app = create_app(settings, dsn)
    addresses: list[tuple[str, int]] = []
    is_listening = threading.Event()

    def on_listening(host: str, port: int) -> None:
        addresses.append((host, port))
        is_listening.set()

    server = Server(app, settings, on_listening)
    thread = threading.Thread(target=server.run, name="broker", daemon=True)
    thread.start()
    try:
        assert is_listening.wait(60), "the broker did not start"
        broker = RunningBroker(f"http://{addresses[0][0]}:{addresses[0][1]}", _broker_services(app))
        with broker.http:
            yield broker
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the broker did not stop: it would keep running during the next test"


def _broker_services(app: FastAPI) -> Broker:
    broker_services: Broker = app.state.broker
    return broker_services


@contextmanager
def broker_process(dsn: str, *wrapper: str, **settings: str) -> Iterator[tuple[RunningBroker, "subprocess.Popen[str]"]]:
    """Runs `python -m app serve` as an operator does, or under the command `wrapper`.

    Settings are LONGSHORE_ names in lower case."""
    with reserved_port() as port:
        settings = {"host": "127.0.0.1", "port": str(port), **settings}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
        environment |= {"DATABASE_URL": dsn, **{f"LONGSHORE_{name.upper()}": value for name, value in settings.items()}}
        process = subprocess.Popen([*wrapper, sys.executable, "-m", "app", "serve"], env=environment, text=True)
        try:
            broker = RunningBroker(f"http://{settings['host']}:{settings['port']}")
            wait_until_serving(broker.base, process)
            with broker.http:
                yield broker, process
        finally:
            stop(process)


def stop(process: "subprocess.Popen[str]", seconds: float = 60) -> None:
    """Sends SIGTERM, as an operator does.

    Kills a broker that does not exit, so that it does not run during the next test."""
    process.terminate()
    try:
        process.wait(seconds)
    finally:
        process.kill()
        process.wait()
