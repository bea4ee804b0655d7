"""Producers and workers that repeat every call until it is answered, and remember what they were told."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.api import Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background

ALL_JOBS = (
    "SELECT id::text FROM jobs UNION SELECT id::text FROM finished_jobs UNION SELECT id::text FROM dead_letters"
)
COMPLETED_JOBS = "SELECT id::text FROM finished_jobs WHERE state = 'completed'"


class Load:
    """`enqueued` and `settled` are what the broker has acknowledged, in the order of the answers."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._stopped = threading.Event()
        self.enqueued: dict[str, str] = {}
        self.settled: list[str] = []
        self.unanswered = 0
        self.pause = 0.0  # the longest between two acknowledged jobs, for reports
        self._heard_at = time.monotonic()

    def produce(self, name: int) -> None:
        with httpx.Client(base_url=self._base, timeout=60) as http:
            for number in itertools.count():
                key = f"{name}-{number}"
                answer = self._answered(http, "/jobs", {"queue": "load", "job_type": "test", "payload": key}, key)
                if answer is None:
                    return
                self.enqueued[key] = answer.json()["id"]
                self._heard()

    def _heard(self) -> None:
        now = time.monotonic()
        self.pause, self._heard_at = max(self.pause, now - self._heard_at), now

    def work(self, name: int) -> None:
        with httpx.Client(base_url=self._base, timeout=60) as http:
            for number in itertools.count():
                claim = self._answered(
                    http, "/claim", {"queues": ["load"], "max_jobs": 5, "wait_seconds": 1}, f"{name}-{number}"
                )
                if claim is None:
                    return
                for job in claim.json()["jobs"]:
                    self._complete(http, job)

    def _complete(self, http: httpx.Client, job: Json) -> None:
        answer = self._answered(http, f"/jobs/{job['id']}/complete", {"lease_token": job["lease_token"]})
        if answer is not None and answer.status_code == 200:
            self.settled.append(job["id"])

    def _answered(self, http: httpx.Client, path: str, body: Json, key: str | None = None) -> httpx.Response | None:
        """Unless the test has ended: nobody repeats a call for ever."""
        while not self._stopped.is_set():
            answer = http.post(path, json=body, headers={"Idempotency-Key": key} if key else {})
            if answer.status_code < 500:
                return answer
            assert answer.status_code == 503, answer.text
            self.unanswered += 1
            self._stopped.wait(0.05)
        return None

    def stop(self) -> None:
        self._stopped.set()

    def more(self, enqueued: int, settled: int) -> None:
        """Returns when so many more have been acknowledged."""
        jobs, settlements = len(self.enqueued) + enqueued, len(self.settled) + settled
        wait_until(lambda: len(self.enqueued) >= jobs and len(self.settled) >= settlements, 60)

    def lost(self, database: TestDatabase) -> tuple[list[str], list[str]]:
        """Jobs and settlements that were acknowledged and are not there."""
        there, completed = ({row["id"] for row in database.rows(sql)} for sql in (ALL_JOBS, COMPLETED_JOBS))
        return [job for job in self.enqueued.values() if job not in there], [
            job for job in self.settled if job not in completed
        ]


@contextmanager
def run_load(base: str, background: Background, *, producers: int = 6, workers: int = 3) -> Iterator[Load]:
    made = Load(base)
    futures = [background.submit(made.produce, name) for name in range(producers)]
    futures += [background.submit(made.work, name) for name in range(workers)]
    try:
        yield made
    finally:
        made.stop()
    for future in futures:
        future.result(90)
