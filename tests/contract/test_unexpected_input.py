"""Parameters and members that an operation does not have are rejected, and not ignored.

The caller may expect an effect.
"""

import httpx
import pytest

from tests.api_client import Api, Json
from tests.contract.document import Operation, operations
from tests.table import table

PATH_PARAMETERS = {
    "{job_id}": "01a1e24b-7875-7000-8000-4007af56e171",
    "{worker_id}": "w",
    "{name}": "mail",
    "{key_id}": "3f1c9a7d5b2e8046",
}


def example_path(operation: Operation) -> str:
    path = operation.path
    for name, value in PATH_PARAMETERS.items():
        path = path.replace(name, value)
    return path


@table(
    "operation",
    [operation for operation in operations() if operation.spec["tags"] != ["operations"]],
)
def test_unknown_parameter_is_rejected_by_every_operation(operation: Operation, http: httpx.Client) -> None:
    response = http.request(
        operation.method,
        example_path(operation),
        params={"no_such": "true"},
        json={} if operation.request_schema else None,
    )
    assert response.status_code == 422, response.text
    assert [error["pointer"] for error in response.json()["errors"]] == ["/query/no_such"]


def test_dry_run_in_the_query_instead_of_the_body_cancels_nothing(api: Api) -> None:
    job = api.enqueue()
    api.post("/jobs/cancel?dry_run=true", {"filter": {"queue": api.queue}}, status=422)
    assert api.job(job["id"])["state"] == "ready"


def test_operation_without_a_body_rejects_a_body_and_changes_nothing(api: Api) -> None:
    dead, later, worker = api.dead_letter(), api.enqueue(delay_seconds=60), f"{api.queue}-w"
    api.claim(worker_id=worker)
    bodies: dict[str, Json] = {
        f"/dead-letters/{dead['id']}/replay": {"overrides": {"priority": 5}},
        f"/jobs/{later['id']}/run-now": {"priority": 5},
        f"/workers/{worker}/drain": {"reason": "deploy"},
    }
    for path, body in bodies.items():
        (error,) = api.post(path, body, status=422)["errors"]
        assert (error["pointer"], error["code"]) == (f"/{next(iter(body))}", "unknown_field")
    assert [api.job(job["id"])["state"] for job in (dead, later)] == ["dead", "scheduled"]
    assert [worker["directive"] for worker in api.get("/workers")["items"]] == ["run"]


@pytest.mark.parametrize("body", [b"", b"{}"], ids=["no body", "an empty object"])
def test_operation_without_a_body_accepts_no_body_or_an_empty_object(api: Api, body: bytes) -> None:
    dead, later, worker = api.dead_letter(), api.enqueue(delay_seconds=60), f"{api.queue}-w"
    api.claim(worker_id=worker)
    for path in (f"/dead-letters/{dead['id']}/replay", f"/jobs/{later['id']}/run-now", f"/workers/{worker}/drain"):
        response = api.http.post(path, content=body)
        assert response.status_code == 200, response.text
