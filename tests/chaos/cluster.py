"""Everything that runs: Postgres, brokers, the network between them, producers and workers, each a process of its own."""

import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec

from tests.chaos.database import Postgres
from tests.chaos.nursery import Child, Nursery
from tests.chaos.options import Options, to_json
from tests.chaos.proxy import Mode, Order
from tests.chaos.standby import Replicated
from tests.chaos.workload import QUEUES, SCHEDULES, WORK

BROKER_SETTINGS = {"LONGSHORE_LOG_LEVEL": "error", "LONGSHORE_SWEEP_SECONDS": "0.2", "LONGSHORE_POLL_SECONDS": "0.5"}
GOING = 20.0  # seconds in which a broker that is asked to go must be gone: its own limits come to 10


class Network:
    """The proxy process, and what it is told."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as said:
            command = [sys.executable, "-m", "tests.chaos.proxy"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)

    def tell(self, order: Order) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the proxy is gone"

    def lead(self, leg: str, place: str, target: str) -> None:
        self.aim(leg, target)
        self.tell(Order(leg, "listen", place=place))

    def aim(self, leg: str, target: str) -> None:
        self.tell(Order(leg, "target", place=target))

    def set_mode(self, legs: list[str], mode: Mode, *, late: bool = False) -> None:
        for leg in legs:
            self.tell(Order(leg, "mode", mode=mode, late=late))

    def close(self) -> None:
        self._process.communicate()


class Cluster:
    def __init__(self, options: Options, folder: Path, *, replicated: bool = False) -> None:
        self.options = options
        self.folder = folder
        self.history = folder / "history"
        self.history.mkdir(parents=True)
        self._sockets = tempfile.TemporaryDirectory(prefix="chaos-")
        self.postgres = Replicated() if replicated else Postgres(folder / "postgres")
        self.network = Network(folder / "proxy.log")
        self.nursery = Nursery(folder / "nursery.log")
        self._ports = free_ports(2 * options.brokers)
        self.brokers: list[Child] = []
        self.stubborn = 0  # brokers that did not go when they were asked to
        self.producers: list[Child] = []
        self.workers = Workers(options, self.nursery, self.history, self.bases)

    @property
    def bases(self) -> list[str]:
        """Where clients find the brokers: through the proxy."""
        return [f"http://127.0.0.1:{port}" for port in self._ports[self.options.brokers :]]

    @property
    def numbers(self) -> list[int]:
        return list(range(self.options.brokers))

    def direct(self, number: int) -> str:
        return f"http://127.0.0.1:{self._ports[number]}"

    # Starting and stopping

    def start(self) -> None:
        self.postgres.start()
        self.postgres.prepare()
        for number in self.numbers:
            folder = Path(self._sockets.name) / str(number)
            folder.mkdir()
            self.network.lead(f"db{number}", f"{folder}/.s.PGSQL.5432", self.postgres.socket)
            self.network.lead(f"client{number}", str(self._ports[self.options.brokers + number]), str(self._ports[number]))
        self.brokers = [self._start_broker(number) for number in self.numbers]
        for number in self.numbers:
            self.await_ready(number)
        self._configure()

    def _start_broker(self, number: int) -> Child:
        env = BROKER_SETTINGS | {
            "LONGSHORE_PORT": str(self._ports[number]),
            "DATABASE_URL": self.postgres.dsn_through(Path(self._sockets.name) / str(number)),
        }
        env |= {"CHAOS_MUTANT": self.options.mutant, "CHAOS_BUGGIFY": f"{self.options.buggify}:{self.options.seed}/{number}"}
        return self.nursery.bear("broker", log=self.folder / f"broker{number}.log", env=env)

    def restart_broker(self, number: int) -> None:
        """Whatever became of the old one."""
        self.brokers[number].end()
        self.brokers[number] = self._start_broker(number)
        self.await_ready(number)

    def ask_to_go(self, number: int) -> None:
        """SIGTERM. One that does not go says in its log what it waits for; the verdict counts it."""
        self.brokers[number].send_signal(signal.SIGTERM)
        if not self.brokers[number].ended(GOING):
            self.stubborn += 1
            self.brokers[number].send_signal(signal.SIGUSR1)
            self.brokers[number].ended(1)

    def await_ready(self, number: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.direct(number)}/livez", timeout=2).status_code == 200:
                    return
            assert self.brokers[number].alive, f"broker {number} ended: see {self.folder}"
            time.sleep(0.05)
        raise AssertionError(f"broker {number} does not serve: see {self.folder}")

    def restart_postgres(self) -> None:
        self.postgres.restart()
        self.find_postgres()

    def find_postgres(self) -> None:
        """Its socket has another place each time."""
        for number in self.numbers:
            self.network.aim(f"db{number}", self.postgres.socket)

    def _configure(self) -> None:
        with httpx.Client(base_url=self.direct(0), timeout=20) as http:
            for name, config in QUEUES.items():
                persist(http, f"/queues/{name}", config)
            for name, seconds in SCHEDULES.items() if self.options.schedules else ():
                job = {"queue": WORK, "job_type": "tick", "payload": {"schedule": name}}
                persist(http, f"/schedules/{name}", {"every_seconds": seconds, "misfire": "all", "job": job})

    def start_clients(self) -> None:
        for number in range(self.options.producers):
            args = (to_json(self.options), str(number), str(self.history), ",".join(self.bases))
            self.producers.append(self.nursery.bear("producer", *args, log=self.folder / "producers.log"))
        self.workers.start()

    def stop(self) -> None:
        """In the order of dependence; whatever is stopped or dead already is no hindrance."""
        self.workers.stop()
        for process in (*self.producers, *self.brokers):
            process.end()
        self.postgres.stop()
        self.network.close()
        self.nursery.close()
        self._sockets.cleanup()


class Workers:
    """Worker processes, each started again under a new name when it has died: a machine that comes back knows nothing."""

    def __init__(self, options: Options, nursery: Nursery, history: Path, bases: list[str]) -> None:
        self._options = options
        self._nursery = nursery
        self._history = history
        self._bases = bases
        self._lives = [0] * options.workers
        self.processes: list[Child] = []
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._revive, name="workers", daemon=True)

    def start(self) -> None:
        self.processes = [self._start(number) for number in range(self._options.workers)]
        self._watch.start()

    def _start(self, number: int) -> Child:
        self._lives[number] += 1
        args = (to_json(self._options), f"w{number}.{self._lives[number]}", str(self._history), ",".join(self._bases))
        return self._nursery.bear("worker", *args, log=self._history.parent / "workers.log")

    def _revive(self) -> None:
        while not self._stopping.wait(0.1):
            for number, process in enumerate(self.processes):
                if not process.alive:
                    self.processes[number] = self._start(number)

    def finish(self) -> None:
        """They end what they have in hand."""
        self._leave_dead()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.ended(30)

    def stop(self) -> None:
        self._leave_dead()
        for process in self.processes:
            process.end()

    def _leave_dead(self) -> None:
        self._stopping.set()
        if self._watch.is_alive():
            self._watch.join()


def persist(http: httpx.Client, path: str, body: dict[str, object]) -> None:
    """A PUT says how it shall be: it may be repeated until it is."""
    for _ in range(20):
        response = http.put(path, json=body)
        if response.status_code != 503:
            break
        time.sleep(0.1)
    assert response.status_code < 300, response.text


def free_ports(count: int) -> list[int]:
    """All taken at once, so that they differ. Below those that the kernel gives to clients: one of them may not have a broker's port
    just while it is down."""
    taken: list[socket.socket] = []
    while len(taken) < count:
        with suppress(OSError):
            taken.append(socket.create_server(("127.0.0.1", random.randint(10_000, 30_000))))
    ports = [listener.getsockname()[1] for listener in taken]
    for listener in taken:
        listener.close()
    return ports
