"""Brokers that are replaced one by one under load (T7, B2, B4): `python -m tests.change.rolling --rounds 20` prints what the clients saw.

Clients know both addresses and repeat a call once, on the other one, with the same key or token: nothing more may be needed.
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

from tests.change.releases import release_process
from tests.ports import reserved_port

Json = dict[str, Any]
QUEUE = "rolling"
PRODUCERS, WORKERS = 2, 4
SETTINGS = {"sweep_seconds": "0.1", "poll_seconds": "0.3", "log_level": "error"}


@dataclass
class Seen:
    """By all clients together."""

    enqueued: set[str] = field(default_factory=set)
    settled: list[str] = field(default_factory=list)
    calls: int = 0
    repeated: int = 0
    failed: list[str] = field(default_factory=list)
    reasons: "Counter[str]" = field(default_factory=Counter)  # of repetitions
    served: "Counter[str]" = field(default_factory=Counter)  # by address
    exits: list[int] = field(default_factory=list)
    exit_seconds: list[float] = field(default_factory=list)


class Slot:
    """An address at which one broker after the other serves."""

    def __init__(self, dsn: str, tree: Path) -> None:
        self._dsn = dsn
        self._stack = ExitStack()
        self._port = str(self._stack.enter_context(reserved_port()))
        self.base = f"http://127.0.0.1:{self._port}"
        self.start(tree)

    def start(self, tree: Path) -> None:
        """Of the release that lies there. Answers when it serves."""
        _, self._process = self._stack.enter_context(release_process(tree, self._dsn, port=self._port, **SETTINGS))

    def end(self, how: signal.Signals) -> "tuple[int, float]":
        """Its status, and how long it took."""
        began = time.monotonic()
        self._process.send_signal(how)
        return self._process.wait(60), time.monotonic() - began

    def close(self) -> None:
        self._stack.close()


class Client:
    """One after the other, beginning with another address each time."""

    def __init__(self, bases: Sequence[str], seen: Seen, number: int) -> None:
        self._bases = itertools.cycle(bases)
        self._seen = seen
        self._http = httpx.Client(timeout=60)
        self._number = number
        self._keys = itertools.count()
        self.answered = 0

    def key(self) -> str:
        return f"{self._number}-{next(self._keys)}"

    def call(self, path: str, body: Json, key: str = "") -> Json:
        """The answer; if there was none, or the broker could not, the other's. What that fails in, fails."""
        told = self._ask(path, body, key)
        if told is None:
            self._seen.repeated += 1
            told = self._ask(path, body, key)
        if told is None:
            self._seen.failed.append(path)
        self._seen.calls += 1
        self.answered += 1
        return told or {}

    def _ask(self, path: str, body: Json, key: str) -> Json | None:
        base = next(self._bases)
        try:
            answer = self._http.post(f"{base}{path}", json=body, headers={"Idempotency-Key": key} if key else {})
        except httpx.TransportError as error:
            self._seen.reasons[type(error).__name__] += 1
            return None
        told: Json = answer.json()
        if answer.status_code >= 300:
            self._seen.reasons[f"{answer.status_code} {told.get('code')}"] += 1
            return None
        self._seen.served[base] += 1
        return told

    def close(self) -> None:
        self._http.close()


class Load:
    """Producers and workers, until they are told to stop and nothing is left."""

    def __init__(self, bases: Sequence[str], seen: Seen) -> None:
        self._bases, self._seen = bases, seen
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(PRODUCERS + WORKERS)
        self._clients: list[Client] = []
        self._producers = [self._start(self._produce) for _ in range(PRODUCERS)]
        self._workers = [self._start(self._work) for _ in range(WORKERS)]

    def _start(self, run: Callable[[Client], None]) -> "Future[None]":
        self._clients.append(Client(self._bases, self._seen, len(self._clients)))
        return self._pool.submit(run, self._clients[-1])

    def await_answers(self, base: str) -> None:
        """The new broker there serves, and what every client has asked until now has been answered: no call sees two brokers go."""
        served, before = self._seen.served[base], [client.answered for client in self._clients]
        _until(lambda: self._seen.served[base] > served)
        _until(lambda: all(client.answered > count for client, count in zip(self._clients, before, strict=True)))

    def _produce(self, client: Client) -> None:
        while not self._enough.wait(0.01):
            job = client.call("/jobs", {"queue": QUEUE, "job_type": "roll"}, client.key())
            if job:
                self._seen.enqueued.add(job["id"])

    def _work(self, client: Client) -> None:
        """Parked some of the time; ends when nothing comes any more."""
        while True:
            over = all(producer.done() for producer in self._producers)
            wait = 0 if over else 3
            jobs = client.call(
                "/claim", {"queues": [QUEUE], "wait_seconds": wait, "lease_seconds": 60}, client.key()
            ).get("jobs", [])
            for job in jobs:
                told = client.call(f"/jobs/{job['id']}/complete", {"lease_token": job["lease_token"]})
                if told:
                    self._seen.settled.append(told["job_id"])
            if over and not jobs:
                return

    def finish(self) -> None:
        self._enough.set()
        for running in (*self._producers, *self._workers):
            running.result(60)
        self._pool.shutdown()
        for client in self._clients:
            client.close()


@contextmanager
def slots(dsn: str, *trees: Path) -> Iterator[list[Slot]]:
    with ExitStack() as stack:
        made = []
        for tree in trees:
            made.append(Slot(dsn, tree))
            stack.callback(made[-1].close)
        yield made


def roll(
    dsn: str,
    trees: Sequence[Path],
    rounds: int,
    *,
    how: signal.Signals = signal.SIGTERM,
    told: Callable[[str], None] = print,
) -> Seen:
    """Two brokers of the first release; then each in turn is replaced by the next release of the list, round and round."""
    seen, following = Seen(), itertools.cycle([*trees[1:], trees[0]])
    with slots(dsn, trees[0], trees[0]) as brokers:
        load = Load([broker.base for broker in brokers], seen)
        for number in range(rounds):
            tree = next(following)
            for broker in brokers:
                status, seconds = broker.end(how)
                seen.exits.append(status)
                seen.exit_seconds.append(seconds)
                broker.start(tree)
                load.await_answers(broker.base)
            told(
                f"round {number + 1} of {rounds}: {len(seen.settled)} jobs done, {seen.repeated} calls repeated, {len(seen.failed)} failed"
            )
        load.finish()
    return seen


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing is done any more"
        time.sleep(0.01)


def _main() -> None:
    import argparse
    import tempfile

    from app.db.migrations import ROOT
    from tests.change.releases import IS_AVAILABLE, unpack
    from tests.database import Loop, create_database, server

    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--alone", action="store_true", help="this release only")
    options.add_argument("--kill", action="store_true", help="kill -9 instead of SIGTERM")
    params = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "postgres") as dsn:
        trees = [unpack(Path(folder) / "previous"), ROOT] if IS_AVAILABLE and not params.alone else [ROOT]
        how = signal.SIGKILL if params.kill else signal.SIGTERM
        seen = roll(create_database(dsn, Loop(), "rolling"), trees, params.rounds, how=how)
    print(f"releases {len(trees)}, restarts {len(seen.exits)}, jobs {len(seen.enqueued)}, done {len(seen.settled)}")
    print(f"lost {len(seen.enqueued - set(seen.settled))}, done twice {len(seen.settled) - len(set(seen.settled))}")
    print(f"calls {seen.calls}, repeated {seen.repeated}, failed after one repetition {len(seen.failed)}")
    print(f"reasons {dict(seen.reasons)}, served {dict(seen.served)}")
    print(f"signal to exit, one by one: {' '.join(f'{seconds:.2f}' for seconds in seen.exit_seconds)} s")


if __name__ == "__main__":
    _main()
