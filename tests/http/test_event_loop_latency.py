"""The event loop serves /livez while any request runs, even the largest that is allowed.

/livez takes at most five times as long as without that request.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api_client import Api, Json
from tests.broker import broker_process
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase, create_database

pytestmark = pytest.mark.slow

MAX_FACTOR = 5
REPEATS = 3  # a request that blocks the loop does so each time; another process on this machine does not
IDLE_SECONDS = 1.5
Request = Callable[[], Any]


class Probes:
    """Measurements of a separate process: when each call of /livez began and ended."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._calls: list[tuple[float, float]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                began, ended = map(float, line.split())
                self._calls.append((began, ended))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._reader.join(30)

    def slowest(self, request: Request) -> float:
        """The longest call that overlaps the request; 0 if the request ran between two calls."""
        began = time.monotonic()
        request()
        ended = time.monotonic()
        # Then every call that began before `ended` has been printed.
        wait_until(lambda: self._calls and self._calls[-1][0] > ended)
        return max((call[1] - call[0] for call in self._calls if call[1] > began and call[0] < ended), default=0.0)


@contextmanager
def probing(base: str) -> Iterator[Probes]:
    url = urlsplit(base)
    command = [sys.executable, "-m", "tests.http.livez_prober", str(url.hostname), str(url.port)]
    probes = Probes(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        yield probes
    finally:
        probes.stop()


@pytest.fixture(scope="module")
def separate_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "loop latency"), loop)
    yield database
    database.close()


def dependency_chain(jobs: int, parents: int) -> list[Json]:
    """Jobs that each depend on the jobs before them."""
    return [
        {"ref": f"r{n}", "depends_on": [f"r{before}" for before in range(max(0, n - parents), n)]} for n in range(jobs)
    ]


def cycles(jobs: int) -> list[Json]:
    """Jobs that each depend on themselves and on all others."""
    return [{"ref": f"r{n}", "depends_on": [f"r{other}" for other in range(jobs)]} for n in range(jobs)]


def create_dead_letters(api: Api, count: int) -> None:
    """Creates dead letters."""
    for _ in range(count // 1000):
        api.enqueue_many(1000)
        items = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in api.claim(max_jobs=1000)["jobs"]]
        failure = {"outcome": "fail", "error": {"message": "no"}, "retryable": False}
        api.settle(*[{**item, **failure} for item in items])


def claim_batch(api: Api) -> list[Json]:
    jobs: list[Json] = api.claim(max_jobs=1000, worker_id="w")["jobs"]
    return jobs


def settle(api: Api, jobs: list[Json], **fields: Any) -> None:
    api.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], **fields} for job in jobs])


def requests(api: Api) -> dict[str, Request]:
    replay = {"filter": {"job_type": "test"}, "limit": 10_000}
    moved = {**replay, "overrides": {"queue": f"{api.queue}.moved", "payload_merge": {"a": 1}}}
    values = [{"payload": {f"p{n}": n for n in range(300)}}] * 1000
    return {
        "dependencies": lambda: api.batch(*dependency_chain(1000, 200)),
        "cycles": lambda: api.batch(*cycles(400), atomic=False, status=207),
        "replay": lambda: api.post("/dead-letters/replay", replay),
        "replay into another queue": lambda: api.post("/dead-letters/replay", moved),
        "many values": lambda: api.batch(*values),
        "large jobs": lambda: api.batch(*[{"queue": f"{api.queue}.large", "payload": "x" * 8000}] * 1000),
        "list of large jobs": lambda: api.get("/jobs", queue=f"{api.queue}.large", limit=1000),
        "list": lambda: api.get("/jobs", limit=1000),
        "heartbeat": lambda: api.heartbeat("w", *claim_batch(api)),
        "settlements": lambda: settle(api, claim_batch(api), outcome="complete", result={"n": 1}),
        "cancel": lambda: api.post("/jobs/cancel", {"filter": {"queue": f"{api.queue}.moved"}, "limit": 10_000}),
        "purge": lambda: api.post(f"/queues/{api.queue}.large/purge", {"dry_run": False}),
    }


def test_livez_stays_fast_while_large_requests_run(separate_database: TestDatabase, queue: str) -> None:
    with broker_process(separate_database.dsn, log_level="error") as (broker, _), probing(broker.base) as probes:
        api = Api(broker.http, queue)
        create_dead_letters(api, 30_000)
        api.enqueue_many(1000)
        idle = [probes.slowest(lambda: time.sleep(IDLE_SECONDS)) for _ in range(REPEATS)]
        slowest = {
            name: min(probes.slowest(request) for _ in range(REPEATS)) for name, request in requests(api).items()
        }
        idle += [probes.slowest(lambda: time.sleep(IDLE_SECONDS)) for _ in range(REPEATS)]
    assert {
        name: f"{took / max(idle):.1f} times" for name, took in slowest.items() if took > MAX_FACTOR * max(idle)
    } == {}
