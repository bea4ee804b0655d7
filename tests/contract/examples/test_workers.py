"""Runs two copies of each published worker as processes.

Their broker is a process that requires API keys, and that the test kills and restarts."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.api_client import Api, Json, parse_time
from tests.broker import RunningBroker, broker_process
from tests.conftest import wait_until
from tests.contract.cli.command import environment, run
from tests.contract.examples.example_workers import EXAMPLES, Example
from tests.database import Loop, create_database
from tests.ports import reserved_port
from tests.table import table

pytestmark = pytest.mark.slow

FAST_SETTINGS = {"sweep_seconds": "0.05", "poll_seconds": "0.2", "log_level": "error"}
LEASE_SECONDS = 8


def eventually(condition: Callable[[], object]) -> None:
    """Waits long enough for a busy machine; the timeout measures nothing."""
    wait_until(condition, seconds=120)


class Deployment:
    """A database, a broker on a fixed port that the test can kill and restart, and the workers."""

    def __init__(self, dsn: str, port: int, folder: Path, stack: ExitStack) -> None:
        self._dsn = dsn
        self._port = port
        self._folder = folder
        self._stack = stack
        self._brokers = ExitStack()
        self._stack.enter_context(self._brokers)
        # Lets all handlers finish, also if the test fails.
        self._stack.callback(lambda: self.let_finish(*[path.stem for path in folder.glob("*.started")]))
        self._admin = create_key(dsn, "enqueue", "work", "read", "manage")
        self._worker = create_key(dsn, "work:mail")
        self.start_broker()

    def start_broker(self) -> None:
        broker, self._process = self._brokers.enter_context(
            broker_process(self._dsn, port=str(self._port), **FAST_SETTINGS)
        )
        broker.http.headers["Authorization"] = f"Bearer {self._admin}"
        self.api = Api(broker.http, "mail")

    def kill_broker(self) -> None:
        self._process.kill()
        self._brokers.close()

    def start_worker(self, command: list[str]) -> "subprocess.Popen[bytes]":
        variables = environment(LONGSHORE_URL=f"http://127.0.0.1:{self._port}", LONGSHORE_KEY=self._worker)
        process = subprocess.Popen([*command, "mail"], env=variables)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def start_jobs(self, *names: str, lease_seconds: int = 60) -> list[Json]:
        """Starts jobs that run until `let_finish`, each in a worker of its own."""
        jobs = [
            self.api.enqueue(job_type="wait", payload=str(self._folder / name), lease_seconds=lease_seconds)
            for name in names
        ]
        eventually(lambda: all((self._folder / f"{name}.started").exists() for name in names))
        return [self.api.job(job["id"]) for job in jobs]

    def let_finish(self, *names: str) -> None:
        for name in names:
            (self._folder / f"{name}.go").touch()

    def wait_until_finished(self, jobs: list[Json]) -> list[Json]:
        """Waits until all jobs are finished, and checks that each had one attempt and one
        delivery."""
        eventually(lambda: all(self.api.job(job["id"])["state"] in ("completed", "dead", "cancelled") for job in jobs))
        finished = [self.api.job(job["id"]) for job in jobs]
        assert [(job["attempt"], job["deliveries"]) for job in finished] == [(1, 1)] * len(jobs)
        return finished


def create_key(dsn: str, *scopes: str) -> str:
    options = [part for scope in scopes for part in ("--scope", scope)]
    created = run("keys", "create", "--name", scopes[0].replace(":", "-"), *options, DATABASE_URL=dsn)
    assert created.returncode == 0, created.stderr
    return created.stdout.strip()


@pytest.fixture(params=EXAMPLES, ids=[example.file for example in EXAMPLES])
def example(request: pytest.FixtureRequest) -> Example:
    worker: Example = request.param
    return worker


@pytest.fixture
def deployment(example: Example, postgres: str, loop: Loop, tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        dsn = create_database(postgres, loop, f"example_{example.file.replace('.', '_').lower()}")
        yield Deployment(dsn, stack.enter_context(reserved_port()), tmp_path, stack)


def test_worker_handles_long_jobs_broker_restarts_cancellation_and_sigterm(
    example: Example, deployment: Deployment, tmp_path: Path
) -> None:
    command = example.command(tmp_path)
    workers = [deployment.start_worker(command) for _ in range(2)]
    check_long_jobs_on_both_copies(deployment)
    check_settlement_while_the_broker_is_down(deployment, example.error_type)
    check_polls_of_a_killed_broker(deployment)
    if example.stops_cancelled_jobs:
        check_cancelled_job(deployment)
    check_termination(deployment, workers)


@table("example", [example for example in EXAMPLES if example.file != "README.md"])
def test_worker_exits_with_one_line_if_its_claim_is_rejected(
    example: Example, broker: RunningBroker, tmp_path: Path
) -> None:
    command = [*example.command(tmp_path), "not a queue name"]
    variables = environment(LONGSHORE_URL=f"{broker.base}/")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("/claim: HTTP 422: ")


def check_long_jobs_on_both_copies(deployment: Deployment) -> None:
    """Runs two jobs at the same time, for longer than their leases: heartbeats extend the leases.

    Each copy has a worker id of its own."""
    jobs = deployment.start_jobs("long-1", "long-2", lease_seconds=LEASE_SECONDS)
    eventually(
        lambda: all(
            lease_end(deployment, job) - parse_time(job["lease_expires_at"]).timestamp() > LEASE_SECONDS for job in jobs
        )
    )
    assert len({worker["worker_id"] for worker in deployment.api.get("/workers")["items"]}) == 2
    deployment.let_finish("long-1", "long-2")
    assert [job["state"] for job in deployment.wait_until_finished(jobs)] == ["completed"] * 2


def lease_end(deployment: Deployment, job: Json) -> float:
    return parse_time(deployment.api.job(job["id"])["lease_expires_at"]).timestamp()


def check_settlement_while_the_broker_is_down(deployment: Deployment, error_type: str) -> None:
    """Finishes two jobs while there is no broker. Other jobs wait in the queue: four that
    succeed, one that fails, and one whose result is not serializable as JSON."""
    running = deployment.start_jobs("cut-1", "cut-2")
    echoes = [
        deployment.api.enqueue(job_type="echo", payload={"number": number, "text": 'ä "$(x)" \n'})
        for number in range(4)
    ]
    fails = deployment.api.enqueue(job_type="fail", max_attempts=1)
    not_json = deployment.api.enqueue(job_type="not_json", max_attempts=1)
    deployment.kill_broker()
    deployment.let_finish("cut-1", "cut-2")
    deployment.start_broker()
    assert [job["state"] for job in deployment.wait_until_finished(running)] == ["completed"] * 2
    assert [job["result"] for job in deployment.wait_until_finished(echoes)] == [job["payload"] for job in echoes]
    failed, unserialisable = deployment.wait_until_finished([fails, not_json])
    assert (failed["state"], failed["error"]) == ("dead", {"message": "no mailbox", "error_type": error_type})
    assert unserialisable["state"] == "dead"
    assert re.search("JSON|serialize", unserialisable["error"]["message"])


def check_polls_of_a_killed_broker(deployment: Deployment) -> None:
    eventually(lambda: deployment.api.get("/stats")["waiting_polls"] == 2)
    deployment.kill_broker()
    deployment.start_broker()
    jobs = [deployment.api.enqueue(job_type="echo", payload=number) for number in range(4)]
    assert [job["result"] for job in deployment.wait_until_finished(jobs)] == [0, 1, 2, 3]


def check_cancelled_job(deployment: Deployment) -> None:
    job = deployment.api.enqueue(job_type="until_cancelled", lease_seconds=3)
    eventually(lambda: deployment.api.job(job["id"])["state"] == "running")
    deployment.api.cancel(job, status=202)
    assert deployment.wait_until_finished([job])[0]["state"] == "cancelled"


def check_termination(deployment: Deployment, workers: "list[subprocess.Popen[bytes]]") -> None:
    """Stops both copies: the idle one exits at once, the busy one after it has settled its job."""
    (job,) = deployment.start_jobs("last")
    eventually(lambda: deployment.api.get("/stats")["waiting_polls"] == 1)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    eventually(lambda: any(worker.poll() is not None for worker in workers))
    assert deployment.api.job(job["id"])["state"] == "running"
    deployment.let_finish("last")
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert deployment.wait_until_finished([job])[0]["state"] == "completed"
