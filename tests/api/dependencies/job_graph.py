"""Graphs of jobs that depend on each other.

The job type of each job is its name in the graph, so that a test can claim a certain job.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.api_client import Api, Json
from tests.conftest import wait_until

UNKNOWN_ID = "01890000-0000-7000-8000-000000000000"


class JobGraph:
    """Jobs by their names in the graph."""

    def __init__(self, api: Api, ids: Mapping[str, str]) -> None:
        self.api = api
        self.ids = ids

    def job(self, name: str) -> Json:
        return self.api.job(self.ids[name])

    def state(self, name: str) -> str:
        state: str = self.job(name)["state"]
        return state

    def states(self) -> dict[str, str]:
        return {name: self.state(name) for name in self.ids}

    def wait_for_states(self, **states: str) -> None:
        """Waits until the named jobs have these states."""
        wait_until(lambda: {name: self.state(name) for name in states} == states)

    def claim(self, name: str, **fields: Any) -> Json:
        """Waits until the job can be claimed, and claims it."""
        job = self.job(name)
        claimed = self.api.claim_one(queues=[job["queue"]], job_types=[job["job_type"]], wait_seconds=20, **fields)
        assert claimed["id"] == job["id"]
        return claimed

    def complete(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.api.complete(self.claim(name), **fields)

    def fail_permanently(self, name: str) -> None:
        self.api.fail(self.claim(name), retryable=False)

    def cancel(self, name: str, *, status: int = 200) -> Json:
        return self.api.cancel(self.job(name), status=status)


def enqueue_graph(
    api: Api, parents: Mapping[str, Sequence[str]], shared: Mapping[str, Any] | None = None, **fields: Json
) -> JobGraph:
    """Enqueues one batch.

    `parents` maps names to parents, `shared` are fields of all jobs, others of one.
    """
    jobs = [
        {
            "ref": name,
            "job_type": name,
            **({"depends_on": list(parent_names)} if parent_names else {}),
            **(shared or {}),
            **fields.get(name, {}),
        }
        for name, parent_names in parents.items()
    ]
    answer = api.batch(*jobs)
    return JobGraph(api, {name: result["job_id"] for name, result in zip(parents, answer["results"], strict=True)})


def enqueue_pair(api: Api, **child: Any) -> JobGraph:
    """Enqueues a child and its parent."""
    return enqueue_graph(api, {"parent": [], "child": ["parent"]}, child=child)
