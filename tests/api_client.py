"""An API client for tests: one method per operation of producers, operators and workers.

Each method fails on any unexpected status."""

from datetime import datetime
from typing import Any

import httpx

Json = dict[str, Any]


def parse_time(text: str) -> datetime:
    """Parses a time for comparison: compared as strings, `30Z` comes after `30.013Z`."""
    return datetime.fromisoformat(text)


class Api:
    def __init__(self, http: httpx.Client, queue: str) -> None:
        self.http = http
        self.queue = queue

    def get(self, path: str, *, status: int = 200, **params: Any) -> Any:
        return self._check(self.http.get(path, params=params), status)

    def post(self, path: str, body: Any = None, *, status: int = 200, key: str | None = None) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        return self._check(self.http.post(path, json=body, headers=headers), status)

    def patch(self, path: str, body: Any, *, status: int = 200) -> Any:
        return self._check(self.http.patch(path, json=body), status)

    def put(self, path: str, body: Any, *, status: int = 200) -> Any:
        return self._check(self.http.put(path, json=body), status)

    def delete(self, path: str, *, status: int = 200) -> Any:
        return self._check(self.http.delete(path), status)

    def _check(self, response: httpx.Response, status: int) -> Any:
        assert response.status_code == status, response.text
        content_type = (
            "application/problem+json" if status >= 400 and "/readyz" not in str(response.url) else "application/json"
        )
        assert response.headers["content-type"] == content_type
        return response.json()

    # Producers

    def enqueue(self, *, status: int = 201, key: str | None = None, **fields: Any) -> Json:
        job: Json = self.post("/jobs", {"queue": self.queue, "job_type": "test", **fields}, status=status, key=key)
        return job

    def batch(self, *jobs: Json, status: int = 201, key: str | None = None, **fields: Any) -> Json:
        """Enqueues jobs; by default in this test's queue, with type `test`."""
        body = {"jobs": [{"queue": self.queue, "job_type": "test", **job} for job in jobs], **fields}
        response: Json = self.post("/jobs/batch", body, status=status, key=key)
        return response

    def enqueue_many(self, count: int, **fields: Any) -> list[str]:
        """Enqueues `count` equal jobs. Returns their ids in order of creation."""
        return [result["job_id"] for result in self.batch(*[fields] * count)["results"]]

    def job(self, job_id: str, **params: Any) -> Json:
        job: Json = self.get(f"/jobs/{job_id}", **params)
        return job

    def cancel(self, job: Json, *, status: int = 200) -> Json:
        cancelled: Json = self.post(f"/jobs/{job['id']}/cancel", {}, status=status)
        return cancelled

    def change(self, job: Json, **fields: Any) -> Json:
        changed: Json = self.patch(f"/jobs/{job['id']}", fields)
        return changed

    def attempts(self, job: Json) -> list[Json]:
        attempts: list[Json] = self.get(f"/jobs/{job['id']}/attempts")["items"]
        return attempts

    def pages(self, path: str, **params: Any) -> list[list[Json]]:
        """Returns all pages of a list by following its cursors."""
        pages = [self.get(path, **params)]
        while "next_cursor" in pages[-1]:
            pages.append(self.get(path, **params, cursor=pages[-1]["next_cursor"]))
        return [page["items"] for page in pages]

    # Operators

    def configure(self, *, status: int = 200, **config: Any) -> Json:
        """Sets the complete configuration of this test's queue."""
        queue: Json = self.put(f"/queues/{self.queue}", config, status=status)
        return queue

    def reconfigure(self, **config: Any) -> Json:
        """Changes only the given fields of this test's queue."""
        queue: Json = self.patch(f"/queues/{self.queue}", config)
        return queue

    def pause(self) -> Json:
        queue: Json = self.post(f"/queues/{self.queue}/pause")
        return queue

    def resume(self) -> Json:
        queue: Json = self.post(f"/queues/{self.queue}/resume")
        return queue

    def replay(self, job: Json) -> Json:
        replayed: Json = self.post(f"/dead-letters/{job['id']}/replay")
        return replayed

    def stats(self) -> Json:
        """Returns the statistics of this test's queue."""
        stats: Json = self.get(f"/queues/{self.queue}/stats")
        return stats

    def counts(self) -> dict[str, int]:
        """Returns the job counts of this test's queue by state, without zeros."""
        return {state: count for state, count in self.stats()["counts"].items() if count}

    # Workers

    def claim(self, **fields: Any) -> Json:
        key = fields.pop("key", None)
        response: Json = self.post("/claim", {"queues": [self.queue], **fields}, key=key)
        return response

    def claim_one(self, **fields: Any) -> Json:
        """Claims exactly one job; any other number fails the test."""
        jobs = self.claim(**fields)["jobs"]
        assert len(jobs) == 1, jobs
        job: Json = jobs[0]
        return job

    def complete(self, job: Json, *, status: int = 200, **fields: Any) -> Json:
        return self._settle("complete", job, status, fields)

    def fail(self, job: Json, message: str = "it broke", *, status: int = 200, **fields: Any) -> Json:
        return self._settle("fail", job, status, {"error": {"message": message}, **fields})

    def snooze(self, job: Json, delay_seconds: int, *, status: int = 200, **fields: Any) -> Json:
        return self._settle("snooze", job, status, {"delay_seconds": delay_seconds, **fields})

    def release(self, job: Json, *, status: int = 200) -> Json:
        return self._settle("release", job, status, {})

    def heartbeat_one(self, job: Json, *, status: int = 200, **fields: Any) -> Json:
        return self._settle("heartbeat", job, status, fields)

    def settle(self, *items: Json) -> Json:
        response: Json = self.post("/settle", {"items": list(items)})
        return response

    def heartbeat(self, worker_id: str, *jobs: Json, **fields: Any) -> Json:
        leases = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in jobs]
        response: Json = self.post("/heartbeat", {"worker_id": worker_id, "leases": leases, **fields})
        return response

    def _settle(self, verb: str, job: Json, status: int, fields: Json) -> Json:
        response: Json = self.post(
            f"/jobs/{job['id']}/{verb}", {"lease_token": job["lease_token"], **fields}, status=status
        )
        return response

    def dead_letter(self, error: Json | None = None, **fields: Any) -> Json:
        """Enqueues a job and fails it without retry, so that it becomes a dead letter."""
        job = self.enqueue(**fields)
        self.fail(self.claim_one(queues=[job["queue"]]), retryable=False, error=error or {"message": "it broke"})
        return job
