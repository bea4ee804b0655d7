"""What a call does not take is refused, not overlooked: whoever sends it meant something by it."""

import httpx
import pytest

from tests.api import Api, Json
from tests.contract.document import Operation, operations

PLACES = {
    "{job_id}": "01a1e24b-7875-7000-8000-4007af56e171",
    "{worker_id}": "w",
    "{name}": "mail",
    "{key_id}": "3f1c9a7d5b2e8046",
}


def path_of(operation: Operation) -> str:
    path = operation.path
    for name, value in PLACES.items():
        path = path.replace(name, value)
    return path


@pytest.mark.parametrize(
    "operation",
    [one for one in operations() if one.spec["tags"] != ["operations"]],
    ids=lambda operation: operation.name,
)
def test_no_call_takes_a_parameter_that_it_does_not_know(operation: Operation, http: httpx.Client) -> None:
    response = http.request(
        operation.method, path_of(operation), params={"no_such": "true"}, json={} if operation.takes else None
    )
    assert response.status_code == 422, response.text
    assert [fault["pointer"] for fault in response.json()["errors"]] == ["/query/no_such"]


def test_a_dry_run_that_was_asked_for_in_the_wrong_place_cancels_nothing(api: Api) -> None:
    job = api.enqueue()
    api.post("/jobs/cancel?dry_run=true", {"filter": {"queue": api.queue}}, status=422)
    assert api.job(job["id"])["state"] == "ready"


def test_a_call_that_takes_no_body_does_nothing_with_one(api: Api) -> None:
    dead, later, worker = api.dead(), api.enqueue(delay_seconds=60), f"{api.queue}-w"
    api.claim(worker_id=worker)
    bodies: dict[str, Json] = {
        f"/dead-letters/{dead['id']}/replay": {"overrides": {"priority": 5}},
        f"/jobs/{later['id']}/run-now": {"priority": 5},
        f"/workers/{worker}/drain": {"reason": "deploy"},
    }
    for path, body in bodies.items():
        (fault,) = api.post(path, body, status=422)["errors"]
        assert (fault["pointer"], fault["code"]) == (f"/{next(iter(body))}", "unknown_field")
    assert [api.job(job["id"])["state"] for job in (dead, later)] == ["dead", "scheduled"]
    assert [worker["directive"] for worker in api.get("/workers")["items"]] == ["run"]


@pytest.mark.parametrize("body", [b"", b"{}"], ids=["no body", "an empty object"])
def test_a_call_that_takes_no_body_takes_none_or_an_empty_one(api: Api, body: bytes) -> None:
    dead, later, worker = api.dead(), api.enqueue(delay_seconds=60), f"{api.queue}-w"
    api.claim(worker_id=worker)
    for path in (f"/dead-letters/{dead['id']}/replay", f"/jobs/{later['id']}/run-now", f"/workers/{worker}/drain"):
        response = api.http.post(path, content=body)
        assert response.status_code == 200, response.text
