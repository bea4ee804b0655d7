"""Producers and workers that repeat every call until it succeeds, and record what the broker
acknowledged."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.api_client import Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background

ALL_JOBS = "SELECT id::text FROM jobs UNION SELECT id::text FROM finished_jobs UNION SELECT id::text FROM dead_letters"
COMPLETED_JOBS = "SELECT id::text FROM finished_jobs WHERE state = 'completed'"


class Load:
    """`enqueued` and `settled` are the jobs that the broker has acknowledged, in the order of the
    responses.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._stopped = threading.Event()
        self.enqueued: dict[str, str] = {}
        self.settled: list[str] = []
        self.failed_calls = 0
        self.longest_pause = 0.0  # the longest time between two acknowledged jobs, for reports
        self._acknowledged_at = time.monotonic()

    def produce(self, name: int) -> None:
        with httpx.Client(base_url=self._base, timeout=60) as http:
            for number in itertools.count():
                key = f"{name}-{number}"
                response = self._call_until_response(
                    http, "/jobs", {"queue": "load", "job_type": "test", "payload": key}, key
                )
                if response is None:
                    return
                self.enqueued[key] = response.json()["id"]
                self._record_pause()

    def _record_pause(self) -> None:
        now = time.monotonic()
        self.longest_pause, self._acknowledged_at = max(self.longest_pause, now - self._acknowledged_at), now

    def work(self, name: int) -> None:
        with httpx.Client(base_url=self._base, timeout=60) as http:
            for number in itertools.count():
                claim = self._call_until_response(
                    http, "/claim", {"queues": ["load"], "max_jobs": 5, "wait_seconds": 1}, f"{name}-{number}"
                )
                if claim is None:
                    return
                for job in claim.json()["jobs"]:
                    self._complete(http, job)

    def _complete(self, http: httpx.Client, job: Json) -> None:
        response = self._call_until_response(http, f"/jobs/{job['id']}/complete", {"lease_token": job["lease_token"]})
        if response is not None and response.status_code == 200:
            self.settled.append(job["id"])

    def _call_until_response(
        self, http: httpx.Client, path: str, body: Json, key: str | None = None
    ) -> httpx.Response | None:
        """Repeats the call while the broker responds with 503.

        None if the test has ended in the meantime.
        """
        while not self._stopped.is_set():
            response = http.post(path, json=body, headers={"Idempotency-Key": key} if key else {})
            if response.status_code < 500:
                return response
            assert response.status_code == 503, response.text
            self.failed_calls += 1
            self._stopped.wait(0.05)
        return None

    def stop(self) -> None:
        self._stopped.set()

    def wait_for_more(self, enqueued: int, settled: int) -> None:
        """Waits until this many more have been acknowledged."""
        jobs, settlements = len(self.enqueued) + enqueued, len(self.settled) + settled
        wait_until(lambda: len(self.enqueued) >= jobs and len(self.settled) >= settlements, 60)

    def lost(self, database: TestDatabase) -> tuple[list[str], list[str]]:
        """Jobs and settlements that were acknowledged and are missing."""
        existing, completed = ({row["id"] for row in database.rows(sql)} for sql in (ALL_JOBS, COMPLETED_JOBS))
        return [job for job in self.enqueued.values() if job not in existing], [
            job for job in self.settled if job not in completed
        ]


@contextmanager
def run_load(base: str, background: Background, *, producers: int = 6, workers: int = 3) -> Iterator[Load]:
    clients = Load(base)
    futures = [background.submit(clients.produce, name) for name in range(producers)]
    futures += [background.submit(clients.work, name) for name in range(workers)]
    try:
        yield clients
    finally:
        clients.stop()
    for future in futures:
        future.result(90)
