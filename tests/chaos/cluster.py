"""All processes of a run: Postgres, brokers, the network between them, producers, workers,
operators."""

import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec

from app.maintenance.coverage_repairer import REPAIRED
from tests.chaos.database import Postgres
from tests.chaos.fork_server import ChildProcess, ForkServer
from tests.chaos.mutants import changed_claim
from tests.chaos.options import Options, to_json
from tests.chaos.proxy import Command, Mode
from tests.chaos.standby import ReplicatedPostgres
from tests.chaos.workload import QUEUES, SCHEDULES, WORK
from tests.coverage import UNCOVERED_JOBS
from tests.ports import free_ports

BROKER_SETTINGS = {"LONGSHORE_LOG_LEVEL": "error", "LONGSHORE_SWEEP_SECONDS": "0.2", "LONGSHORE_POLL_SECONDS": "0.5"}
SHUTDOWN_SECONDS = 20.0  # seconds for a broker to exit after SIGTERM: its own timeouts add up to 10


class Network:
    """The proxy process and the commands to it."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            command = [sys.executable, "-m", "tests.chaos.proxy"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def send(self, command: Command) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the proxy has exited"

    def open_link(self, link: str, address: str, target: str) -> None:
        self.set_target(link, target)
        self.send(Command(link, "listen", address=address))

    def set_target(self, link: str, target: str) -> None:
        self.send(Command(link, "target", address=target))

    def set_mode(self, links: list[str], mode: Mode, *, late: bool = False) -> None:
        for link in links:
            self.send(Command(link, "mode", mode=mode, late=late))

    def close(self) -> None:
        self._process.communicate()


class Cluster:
    def __init__(self, options: Options, folder: Path, *, replicated: bool = False) -> None:
        self.options = options
        self.folder = folder
        self.history = folder / "history"
        self.history.mkdir(parents=True)
        self._sockets = tempfile.TemporaryDirectory(prefix="chaos-")
        self.postgres = ReplicatedPostgres() if replicated else Postgres(folder / "postgres")
        self.network = Network(folder / "proxy.log")
        self.fork_server = ForkServer(folder / "fork_server.log")
        self._ports = free_ports(2 * options.brokers)
        self.brokers: list[ChildProcess] = []
        self.hung_brokers = 0  # number of brokers that did not exit on SIGTERM
        self.failed_brokers: list[int] = []  # exit statuses of brokers that exited by themselves, or not with 0
        self.producers: list[ChildProcess] = []
        self.operators: list[ChildProcess] = []
        self._api_keys = ApiKeyPairs(folder / "keys.json")
        self.workers = Workers(options, self.fork_server, self.history, self.bases)

    @property
    def bases(self) -> list[str]:
        """Returns the addresses of the brokers for clients, through the proxy."""
        return [f"http://127.0.0.1:{port}" for port in self._ports[self.options.brokers :]]

    @property
    def numbers(self) -> list[int]:
        return list(range(self.options.brokers))

    def direct(self, number: int) -> str:
        return f"http://127.0.0.1:{self._ports[number]}"

    # Starting and stopping

    def start(self) -> None:
        self.postgres.start()
        self.postgres.prepare(changed_claim(self.options.mutant))
        for number in self.numbers:
            folder = Path(self._sockets.name) / str(number)
            folder.mkdir()
            self.network.open_link(f"db{number}", f"{folder}/.s.PGSQL.5432", self.postgres.socket)
            self.network.open_link(
                f"client{number}", str(self._ports[self.options.brokers + number]), str(self._ports[number])
            )
        self.network.open_link("sql", f"{self._sockets.name}/.s.PGSQL.5432", self.postgres.socket)
        self.brokers = [self._start_broker(number) for number in self.numbers]
        for number in self.numbers:
            self.wait_until_ready(number)
        self._configure()

    def _start_broker(self, number: int) -> ChildProcess:
        env = BROKER_SETTINGS | {
            "LONGSHORE_PORT": str(self._ports[number]),
            "DATABASE_URL": self.postgres.dsn_of_proxy(Path(self._sockets.name) / str(number)),
        }
        env |= {
            "CHAOS_MUTANT": self.options.mutant,
            "CHAOS_BUGGIFY": f"{self.options.buggify}:{self.options.seed}/{number}",
        }
        return self.fork_server.fork("broker", log=self.folder / f"broker{number}.log", env=env)

    def kill_broker(self, number: int) -> None:
        self._check_alive(number)
        self.brokers[number].send_signal(signal.SIGKILL)

    def _check_alive(self, number: int) -> None:
        """Records a broker that has exited, although nothing has told it to."""
        if not self.brokers[number].is_alive:
            self.failed_brokers.append(self.brokers[number].exit_status or 0)

    def restart_broker(self, number: int) -> None:
        """Starts a new broker process, in whatever state the old one is."""
        self.brokers[number].kill()
        self.brokers[number] = self._start_broker(number)
        self.wait_until_ready(number)

    def terminate_broker(self, number: int) -> None:
        """Sends SIGTERM. A broker that does not exit logs its pending tasks, and is counted."""
        self._check_alive(number)
        self.brokers[number].send_signal(signal.SIGTERM)
        self._wait_for_exit(number)

    def terminate_all_brokers(self) -> None:
        """Sends SIGTERM to all brokers at once, at the end of a run."""
        for number in self.numbers:
            self._check_alive(number)
            self.brokers[number].send_signal(signal.SIGTERM)
        for number in self.numbers:
            self._wait_for_exit(number)

    def _wait_for_exit(self, number: int) -> None:
        if not self.brokers[number].has_exited_within(SHUTDOWN_SECONDS):
            self.hung_brokers += 1
            self.brokers[number].send_signal(signal.SIGUSR1)
            self.brokers[number].has_exited_within(1)
        elif status := self.brokers[number].exit_status:
            self.failed_brokers.append(status)

    def uncovered_jobs(self) -> int:
        """Counts the jobs without a ready span or lease check: what the brokers have repaired, and what is
        left."""
        logs = [log.read_text(errors="replace").count(REPAIRED) for log in self.folder.glob("broker*.log")]
        return sum(logs) + len(self.postgres.rows(UNCOVERED_JOBS))

    def wait_until_ready(self, number: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.direct(number)}/livez", timeout=2).status_code == 200:
                    return
            assert self.brokers[number].is_alive, f"broker {number} exited: see {self.folder}"
            time.sleep(0.05)
        raise AssertionError(f"broker {number} does not serve: see {self.folder}")

    def restart_postgres(self) -> None:
        self.postgres.restart()
        self.retarget_links()

    def retarget_links(self) -> None:
        """Points the links at the socket of Postgres, which changes with each start."""
        for link in ("sql", *(f"db{number}" for number in self.numbers)):
            self.network.set_target(link, self.postgres.socket)

    def _configure(self) -> None:
        with self.http() as http:
            self._api_keys.create(http)
        with self.http() as http:
            for name, config in QUEUES.items():
                put_with_retries(http, f"/queues/{name}", config)
            for name, seconds in SCHEDULES.items() if self.options.schedules else ():
                job = {"queue": WORK, "job_type": "tick", "payload": {"schedule": name}}
                put_with_retries(http, f"/schedules/{name}", {"every_seconds": seconds, "misfire": "all", "job": job})

    def http(self, timeout: float = 20) -> httpx.Client:
        """Returns a client of the harness, without proxy, with an administrator's key."""
        return httpx.Client(base_url=self.direct(0), timeout=timeout, headers=self._api_keys.headers)

    def start_clients(self) -> None:
        options, history, bases = to_json(self.options), str(self.history), ",".join(self.bases)
        sql = self.postgres.dsn_of_proxy(Path(self._sockets.name))
        for number in range(self.options.producers):
            args = (options, str(number), history, bases, sql)
            self.producers.append(self.fork_server.fork("producer", *args, log=self.folder / "producers.log"))
        self.workers.start()
        if self.options.operator:
            keys_to_revoke = ",".join(self._api_keys.keys_to_revoke)
            self.operators.append(
                self.fork_server.fork(
                    "operator", options, history, bases, keys_to_revoke, log=self.folder / "operators.log"
                )
            )

    def stop_operators(self) -> None:
        """Stops the operators, which first resume all queues."""
        for operator in self.operators:
            operator.send_signal(signal.SIGTERM)
        for operator in self.operators:
            assert operator.has_exited_within(60), f"the operator does not exit: see {self.folder}"

    def stop(self) -> None:
        """Stops everything in the order of dependence. Processes may be stopped or dead already."""
        self.workers.stop()
        for process in (*self.producers, *self.operators, *self.brokers):
            process.kill()
        self.postgres.stop()
        self.network.close()
        self.fork_server.close()
        self._sockets.cleanup()


class ApiKeyPairs:
    """Two API keys for each role of clients, in a file that they read, and an administrator's key.

    The operator revokes one key of each pair during the run."""

    SCOPES: ClassVar = {"producer": ["enqueue"], "worker": ["work"], "operator": ["read", "manage"]}

    def __init__(self, file: Path) -> None:
        self._file = file
        self._admin = ""
        self.keys_to_revoke: list[str] = []

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._admin}"} if self._admin else {}

    def create(self, http: httpx.Client) -> None:
        """Creates the keys. From the first key on every request needs one."""
        self._admin = self._create(http, "harness", ["enqueue", "work", "read", "manage"])["key"]
        tokens: dict[str, dict[str, str]] = {}
        for role, scopes in self.SCOPES.items():
            first, second = (self._create(http, role, scopes) for _ in range(2))
            tokens[role] = {first["id"]: first["key"], second["id"]: second["key"]}
            if role != "operator":
                self.keys_to_revoke.append(first["id"])
        self._file.write_bytes(msgspec.json.encode(tokens))

    def _create(self, http: httpx.Client, name: str, scopes: list[str]) -> dict[str, str]:
        """Creates a key. It retries, because brokers inject faults into themselves (buggify).

        A lost response leaves an extra key, which is harmless."""
        for _ in range(20):
            response = http.post("/api-keys", json={"name": name, "scopes": scopes}, headers=self.headers)
            if response.status_code == 201:
                created: dict[str, str] = response.json()
                return created
            time.sleep(0.1)
        raise AssertionError(response.text)


class Workers:
    """Worker processes.

    A dead one is restarted under a new name: a rebooted machine knows nothing."""

    def __init__(self, options: Options, fork_server: ForkServer, history: Path, bases: list[str]) -> None:
        self._options = options
        self._fork_server = fork_server
        self._history = history
        self._bases = bases
        self._starts = [0] * options.workers
        self.processes: list[ChildProcess] = []
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._restart_dead, name="workers", daemon=True)

    def start(self) -> None:
        self.processes = [self._start(number) for number in range(self._options.workers)]
        self._watch.start()

    def _start(self, number: int) -> ChildProcess:
        self._starts[number] += 1
        args = (to_json(self._options), f"w{number}.{self._starts[number]}", str(self._history), ",".join(self._bases))
        return self._fork_server.fork("worker", *args, log=self._history.parent / "workers.log")

    def _restart_dead(self) -> None:
        while not self._stopping.wait(0.1):
            for number, process in enumerate(self.processes):
                if not process.is_alive:
                    self.processes[number] = self._start(number)

    def finish(self) -> None:
        """Stops the workers; they first settle the jobs that they hold."""
        self._stop_restarting()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.has_exited_within(30)

    def stop(self) -> None:
        self._stop_restarting()
        for process in self.processes:
            process.kill()

    def _stop_restarting(self) -> None:
        self._stopping.set()
        if self._watch.is_alive():
            self._watch.join()


def put_with_retries(http: httpx.Client, path: str, body: dict[str, object]) -> None:
    """Retries a PUT until it succeeds: a PUT is idempotent."""
    for _ in range(20):
        response = http.put(path, json=body)
        if response.status_code != 503:
            break
        time.sleep(0.1)
    assert response.status_code < 300, response.text
