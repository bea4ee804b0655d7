"""Jobs that wait for each other, each of the type that it is called by: so that a test can run the very one it means."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.api import Api, Json
from tests.conftest import wait_until

NOBODY = "01890000-0000-7000-8000-000000000000"


class Family:
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

    def become(self, **states: str) -> None:
        """Waits until these have come to these states."""
        wait_until(lambda: {name: self.state(name) for name in states} == states)

    def claim(self, name: str, **fields: Any) -> Json:
        """Waits until it can be claimed."""
        job = self.job(name)
        held = self.api.claim_one(queues=[job["queue"]], job_types=[job["job_type"]], wait_seconds=20, **fields)
        assert held["id"] == job["id"]
        return held

    def complete(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.api.complete(self.claim(name), **fields)

    def die(self, name: str) -> None:
        self.api.fail(self.claim(name), retryable=False)

    def cancel(self, name: str, *, status: int = 200) -> Json:
        return self.api.cancel(self.job(name), status=status)


def born(
    api: Api, parents: Mapping[str, Sequence[str]], together: Mapping[str, Any] | None = None, **own: Json
) -> Family:
    """One batch. `parents` by name, `together` fields of all, others fields of one."""
    jobs = [
        {
            "ref": name,
            "job_type": name,
            **({"depends_on": list(awaited)} if awaited else {}),
            **(together or {}),
            **own.get(name, {}),
        }
        for name, awaited in parents.items()
    ]
    answer = api.batch(*jobs)
    return Family(api, {name: result["job_id"] for name, result in zip(parents, answer["results"], strict=True)})


def pair(api: Api, **child: Any) -> Family:
    """A child and the parent that it waits for."""
    return born(api, {"parent": [], "child": ["parent"]}, child=child)
