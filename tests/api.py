"""The API as tests speak it: one method per thing that a producer, a worker or an operator does. Fails on any unexpected status."""

from datetime import datetime
from typing import Any

import httpx

Json = dict[str, Any]


def when(told: str) -> datetime:
    """An instant to compare with others: as texts, `30Z` comes after `30.013Z`."""
    return datetime.fromisoformat(told)


class Api:
    def __init__(self, http: httpx.Client, queue: str) -> None:
        self.http = http
        self.queue = queue

    def get(self, path: str, *, status: int = 200, **params: Any) -> Any:
        return self._checked(self.http.get(path, params=params), status)

    def post(self, path: str, body: Any = None, *, status: int = 200, key: str | None = None) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        return self._checked(self.http.post(path, json=body, headers=headers), status)

    def patch(self, path: str, body: Any, *, status: int = 200) -> Any:
        return self._checked(self.http.patch(path, json=body), status)

    def put(self, path: str, body: Any, *, status: int = 200) -> Any:
        return self._checked(self.http.put(path, json=body), status)

    def delete(self, path: str, *, status: int = 200) -> Any:
        return self._checked(self.http.delete(path), status)

    def _checked(self, response: httpx.Response, status: int) -> Any:
        assert response.status_code == status, response.text
        kind = (
            "application/problem+json" if status >= 400 and "/readyz" not in str(response.url) else "application/json"
        )
        assert response.headers["content-type"] == kind
        return response.json()

    # Producers

    def enqueue(self, *, status: int = 201, key: str | None = None, **fields: Any) -> Json:
        job: Json = self.post("/jobs", {"queue": self.queue, "job_type": "test", **fields}, status=status, key=key)
        return job

    def batch(self, *jobs: Json, status: int = 201, key: str | None = None, **fields: Any) -> Json:
        """Jobs of this test's queue and of type test, unless they say otherwise."""
        body = {"jobs": [{"queue": self.queue, "job_type": "test", **job} for job in jobs], **fields}
        answer: Json = self.post("/jobs/batch", body, status=status, key=key)
        return answer

    def enqueue_many(self, count: int, **fields: Any) -> list[str]:
        """Their ids, in the order of creation."""
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
        """Every page of a list, by following its cursors."""
        pages = [self.get(path, **params)]
        while "next_cursor" in pages[-1]:
            pages.append(self.get(path, **params, cursor=pages[-1]["next_cursor"]))
        return [page["items"] for page in pages]

    # Operators

    def configure(self, *, status: int = 200, **config: Any) -> Json:
        """This test's queue, declaratively."""
        queue: Json = self.put(f"/queues/{self.queue}", config, status=status)
        return queue

    def reconfigure(self, **config: Any) -> Json:
        """Only what is given changes."""
        queue: Json = self.patch(f"/queues/{self.queue}", config)
        return queue

    def pause(self) -> Json:
        queue: Json = self.post(f"/queues/{self.queue}/pause")
        return queue

    def resume(self) -> Json:
        queue: Json = self.post(f"/queues/{self.queue}/resume")
        return queue

    def replay(self, job: Json) -> Json:
        revived: Json = self.post(f"/dead-letters/{job['id']}/replay")
        return revived

    def stats(self) -> Json:
        """Of this test's queue."""
        stats: Json = self.get(f"/queues/{self.queue}/stats")
        return stats

    def counts(self) -> dict[str, int]:
        """Of this test's queue, without the zeros."""
        return {state: count for state, count in self.stats()["counts"].items() if count}

    # Workers

    def claim(self, **fields: Any) -> Json:
        key = fields.pop("key", None)
        answer: Json = self.post("/claim", {"queues": [self.queue], **fields}, key=key)
        return answer

    def claim_one(self, **fields: Any) -> Json:
        """Exactly one job, or the test fails."""
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
        answer: Json = self.post("/settle", {"items": list(items)})
        return answer

    def heartbeat(self, worker_id: str, *jobs: Json, **fields: Any) -> Json:
        leases = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in jobs]
        answer: Json = self.post("/heartbeat", {"worker_id": worker_id, "leases": leases, **fields})
        return answer

    def _settle(self, verb: str, job: Json, status: int, fields: Json) -> Json:
        answer: Json = self.post(
            f"/jobs/{job['id']}/{verb}", {"lease_token": job["lease_token"], **fields}, status=status
        )
        return answer

    def dead(self, error: Json | None = None, **fields: Any) -> Json:
        """A job that has died of its first failure."""
        job = self.enqueue(**fields)
        self.fail(self.claim_one(queues=[job["queue"]]), retryable=False, error=error or {"message": "it broke"})
        return job
