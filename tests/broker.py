"""Real brokers for tests: in a thread of this process (fast, its rooms can be reached), or as processes of their own."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from fastapi import FastAPI

from app.house import House
from app.main import create_app
from app.settings import Settings
from app.web.server import Server


class Broker:
    """Where it listens, and a client for it."""

    def __init__(self, base: str, house: House | None = None) -> None:
        self.base = base
        self.house = house
        self.http = httpx.Client(base_url=base, timeout=60)


@contextmanager
def threaded_broker(settings: Settings, dsn: str) -> Iterator[Broker]:
    """uvicorn on a real socket, in a thread. No signals: a thread gets none."""
    app = create_app(settings, dsn)
    listening: list[tuple[str, int]] = []
    heard = threading.Event()

    def on_listening(host: str, port: int) -> None:
        listening.append((host, port))
        heard.set()

    server = Server(app, settings, on_listening)
    thread = threading.Thread(target=server.run, name="broker", daemon=True)
    thread.start()
    assert heard.wait(30), "the broker did not start"
    broker = Broker(f"http://{listening[0][0]}:{listening[0][1]}", _house(app))
    try:
        yield broker
    finally:
        broker.http.close()
        server.should_exit = True
        thread.join(30)


def _house(app: FastAPI) -> House:
    house: House = app.state.house
    return house


@contextmanager
def broker_process(dsn: str, *within: str, **settings: str) -> Iterator[tuple[Broker, "subprocess.Popen[str]"]]:
    """`python -m app serve` as an operator starts it, or `within` a command that runs it. Settings are LONGSHORE_ names in lower case."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGSHORE_")}
    environment |= {"DATABASE_URL": dsn, "LONGSHORE_PORT": "0", **{f"LONGSHORE_{name.upper()}": value for name, value in settings.items()}}
    process = subprocess.Popen([*within, sys.executable, "-m", "app", "serve"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        base = next(line for line in process.stdout if "listens on" in line).split()[3]
        broker = Broker(base)
        with broker.http:
            yield broker, process
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
