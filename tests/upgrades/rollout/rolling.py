"""Replaces brokers one by one under load: `python -m tests.upgrades.rollout.rolling --rounds 20`.

It prints the results of the clients. Clients know both addresses and retry a call once, on the
other address, with the same key or token: nothing more may be needed. Faults:
docs/reliability/faults.md#b2, #b4.
"""

import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.ports import reserved_port
from tests.upgrades.rollout.releases import release_process

Json = dict[str, Any]
QUEUE = "rolling"
PRODUCERS, WORKERS = 2, 4
SETTINGS = {"sweep_seconds": "0.1", "poll_seconds": "0.3", "log_level": "error"}


@dataclass
class Results:
    """The results of all clients together."""

    enqueued: set[str] = field(default_factory=set)
    settled: list[str] = field(default_factory=list)
    calls: int = 0
    retried: int = 0
    failed: list[str] = field(default_factory=list)
    reasons: "Counter[str]" = field(default_factory=Counter)  # of retries
    served: "Counter[str]" = field(default_factory=Counter)  # by address
    exits: list[int] = field(default_factory=list)
    exit_seconds: list[float] = field(default_factory=list)


class Slot:
    """An address at which one broker after another serves."""

    def __init__(self, dsn: str, tree: Path) -> None:
        self._dsn = dsn
        self._stack = ExitStack()
        self._port = str(self._stack.enter_context(reserved_port()))
        self.base = f"http://127.0.0.1:{self._port}"
        self.start(tree)

    def start(self, tree: Path) -> None:
        """Starts a broker of the release in `tree`. Returns when it serves."""
        _, self._process = self._stack.enter_context(release_process(tree, self._dsn, port=self._port, **SETTINGS))

    def stop(self, number: signal.Signals) -> "tuple[int, float]":
        """Stops the broker by a signal. Returns its exit status and the seconds until its exit."""
        started = time.monotonic()
        self._process.send_signal(number)
        return self._process.wait(60), time.monotonic() - started

    def close(self) -> None:
        self._stack.close()


class Client:
    """A client that sends one call at a time, to both addresses in turn."""

    def __init__(self, bases: Sequence[str], results: Results, number: int) -> None:
        self._bases = itertools.cycle(bases)
        self._results = results
        self._http = httpx.Client(timeout=60)
        self._number = number
        self._keys = itertools.count()
        self.finished_calls = 0

    def key(self) -> str:
        return f"{self._number}-{next(self._keys)}"

    def call(self, path: str, body: Json, key: str = "") -> Json:
        """Sends a call, and retries it once at the other address. A second failure is recorded."""
        response = self._send(path, body, key)
        if response is None:
            self._results.retried += 1
            response = self._send(path, body, key)
        if response is None:
            self._results.failed.append(path)
        self._results.calls += 1
        self.finished_calls += 1
        return response or {}

    def _send(self, path: str, body: Json, key: str) -> Json | None:
        base = next(self._bases)
        try:
            response = self._http.post(f"{base}{path}", json=body, headers={"Idempotency-Key": key} if key else {})
        except httpx.TransportError as error:
            self._results.reasons[type(error).__name__] += 1
            return None
        content: Json = response.json()
        if response.status_code >= 300:
            self._results.reasons[f"{response.status_code} {content.get('code')}"] += 1
            return None
        self._results.served[base] += 1
        return content

    def close(self) -> None:
        self._http.close()


class Load:
    """Producers and workers that run until they are stopped and no job is left."""

    def __init__(self, bases: Sequence[str], results: Results) -> None:
        self._bases, self._results = bases, results
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(PRODUCERS + WORKERS)
        self._clients: list[Client] = []
        self._producers = [self._start(self._produce) for _ in range(PRODUCERS)]
        self._workers = [self._start(self._work) for _ in range(WORKERS)]

    def _start(self, run: Callable[[Client], None]) -> "Future[None]":
        self._clients.append(Client(self._bases, self._results, len(self._clients)))
        return self._pool.submit(run, self._clients[-1])

    def wait_for_responses(self, base: str) -> None:
        """Waits until the new broker serves and every client has finished a call since.

        So no call spans the replacement of both brokers."""
        served, before = self._results.served[base], [client.finished_calls for client in self._clients]
        _wait_until(lambda: self._results.served[base] > served)
        _wait_until(
            lambda: all(client.finished_calls > count for client, count in zip(self._clients, before, strict=True))
        )

    def _produce(self, client: Client) -> None:
        while not self._stopping.wait(0.01):
            job = client.call("/jobs", {"queue": QUEUE, "job_type": "roll"}, client.key())
            if job:
                self._results.enqueued.add(job["id"])

    def _work(self, client: Client) -> None:
        """Polls, parked some of the time, until the producers have ended and no job is left."""
        while True:
            is_last = all(producer.done() for producer in self._producers)
            wait = 0 if is_last else 3
            jobs = client.call(
                "/claim", {"queues": [QUEUE], "wait_seconds": wait, "lease_seconds": 60}, client.key()
            ).get("jobs", [])
            for job in jobs:
                settled = client.call(f"/jobs/{job['id']}/complete", {"lease_token": job["lease_token"]})
                if settled:
                    self._results.settled.append(settled["job_id"])
            if is_last and not jobs:
                return

    def finish(self) -> None:
        self._stopping.set()
        for running in (*self._producers, *self._workers):
            running.result(60)
        self._pool.shutdown()
        for client in self._clients:
            client.close()


@contextmanager
def slots(dsn: str, *trees: Path) -> Iterator[list[Slot]]:
    with ExitStack() as stack:
        opened = []
        for tree in trees:
            opened.append(Slot(dsn, tree))
            stack.callback(opened[-1].close)
        yield opened


def roll(
    dsn: str,
    trees: Sequence[Path],
    rounds: int,
    *,
    number: signal.Signals = signal.SIGTERM,
    report: Callable[[str], None] = print,
) -> Results:
    """Starts two brokers of the first release, then replaces each in turn, release by release."""
    results, next_trees = Results(), itertools.cycle([*trees[1:], trees[0]])
    with slots(dsn, trees[0], trees[0]) as brokers:
        load = Load([broker.base for broker in brokers], results)
        for round_number in range(rounds):
            tree = next(next_trees)
            for broker in brokers:
                status, seconds = broker.stop(number)
                results.exits.append(status)
                results.exit_seconds.append(seconds)
                broker.start(tree)
                load.wait_for_responses(broker.base)
            report(
                f"round {round_number + 1} of {rounds}: {len(results.settled)} jobs completed, "
                f"{results.retried} calls retried, {len(results.failed)} failed"
            )
        load.finish()
    return results


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "no progress within 60 s"
        time.sleep(0.01)


def _main() -> None:
    import argparse
    import tempfile

    from app.db.migrations import ROOT
    from tests.database import Loop, create_database, server
    from tests.upgrades.rollout.releases import IS_AVAILABLE, unpack

    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--alone", action="store_true", help="this release only")
    options.add_argument("--kill", action="store_true", help="kill -9 instead of SIGTERM")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "postgres") as dsn:
        trees = [unpack(Path(folder) / "previous"), ROOT] if IS_AVAILABLE and not arguments.alone else [ROOT]
        number = signal.SIGKILL if arguments.kill else signal.SIGTERM
        results = roll(create_database(dsn, Loop(), "rolling"), trees, arguments.rounds, number=number)
    print(
        f"releases {len(trees)}, restarts {len(results.exits)}, "
        f"jobs {len(results.enqueued)}, completed {len(results.settled)}"
    )
    print(
        f"lost {len(results.enqueued - set(results.settled))}, twice {len(results.settled) - len(set(results.settled))}"
    )
    print(f"calls {results.calls}, retried {results.retried}, failed after one retry {len(results.failed)}")
    print(f"reasons {dict(results.reasons)}, served {dict(results.served)}")
    print(f"signal to exit, one by one: {' '.join(f'{seconds:.2f}' for seconds in results.exit_seconds)} s")


if __name__ == "__main__":
    _main()
