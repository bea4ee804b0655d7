"""Invalid input on every operation with a body.

The response is the 4xx that the catalogue of faults demands (docs/reliability/faults.md#d1 and
following), never a 5xx. Accepted values are not changed.
"""

import copy
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.api_client import Api, Json
from tests.contract.conftest import ApiFor
from tests.contract.document import Operation, Schema, component, openapi, operation, operations
from tests.contract.example_setup import SETUPS, example, with_real_ids
from tests.contract.hostile_cases import BODIES, FIRST_AND_LAST, INSTANTS, NAMES, VALUES, Case, exact
from tests.table import table

pytestmark = pytest.mark.slow

WRITING = [found for found in operations() if found.method in ("POST", "PATCH", "PUT")]
WITH_BODY = [found for found in WRITING if found.request_schema is not None]
PLACEHOLDER = "@here@"
LIBRARY_WORDING = re.compile(r"Expected `|Object (missing|contains)|Input should|Value error|matching regex|valid enum")
WRONG_TYPES: list[Any] = [None, True, -1, 1.5, 10**30, "", "x" * 10_000, [], {}, [[]], {"a": 1}]

# The members of each request that hold free JSON. Operations without one get the values in a text.
FREE_JSON: dict[str, list[list[str | int]]] = {
    "enqueue_job": [["payload"], ["metadata", "x"]],
    "enqueue_jobs": [["jobs", 0, "payload"], ["jobs", 1, "metadata", "x"]],
    "update_job": [["payload"], ["metadata", "x"]],
    "claim_jobs": [["settle", 0, "result"], ["settle", 0, "checkpoint"]],
    "heartbeat_leases": [["leases", 0, "checkpoint"]],
    "heartbeat_job": [["checkpoint"]],
    "complete_job": [["result"]],
    "fail_job": [["error", "details"]],
    "snooze_job": [["checkpoint"]],
    "settle_jobs": [["items", 0, "result"], ["items", 0, "error", "details"]],
    "replay_dead_letters": [["overrides", "payload_merge", "x"]],
    "put_schedule": [["job", "payload"], ["job", "metadata", "x"]],
}
TEXTS: dict[str, list[list[str | int]]] = {
    "cancel_job": [["reason"]],
    "cancel_jobs": [["filter", "tag"]],
    "release_job": [["lease_token"]],
    "purge_dead_letters": [["filter", "fingerprint"]],
    "put_queue": [["retention", "mode"]],
    "update_queue": [["retention", "mode"]],
    "pause_queue": [["reason"]],
    "purge_queue": [["states", 0]],
    "preview_schedule": [["cron"], ["timezone"]],
    "put_job_type": [["payload_schema", "title"]],
    "create_api_key": [["name"], ["scopes", 0]],
}


class Sender:
    """Sends the example of an operation with one change.

    Collects mismatches, so that one assertion at the end lists them all.
    """

    def __init__(self, api: Api, found: Operation) -> None:
        sent = with_real_ids(example(found.name)["request"], SETUPS[found.name](api))
        self.http = api.http
        self.operation = found
        self.path: str = sent["path"]
        self.base: Json = sent.get("body", {})
        self.base.pop("wait_seconds", None)
        self.mismatches: list[str] = []

    def send(self, description: str, content: bytes, status: int | None = None) -> httpx.Response:
        response = self.http.request(self.operation.method, self.path, content=content)
        if response.status_code >= 500 or (status is not None and response.status_code != status):
            self.mismatches.append(
                f"{self.operation.name}: {description}: {response.status_code}, "
                f"not {status or 'below 500'}: {response.text[:150]}"
            )
        if response.status_code == 422 and LIBRARY_WORDING.search(response.text):
            self.mismatches.append(f"{self.operation.name}: {description}: worded by a library: {response.text[:300]}")
        return response

    def with_value(self, path: list[str | int], value: Any) -> Json:
        changed = copy.deepcopy(self.base)
        inner: Any = changed
        for step, following in itertools.pairwise(path):
            if isinstance(following, int) and step not in inner:
                raise KeyError(step)  # the example has no such list
            inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
        inner[path[-1]] = value
        return changed

    def with_text(self, path: list[str | int], text: bytes) -> bytes:
        return json.dumps(self.with_value(path, PLACEHOLDER)).encode().replace(json.dumps(PLACEHOLDER).encode(), text)


@pytest.fixture(params=WRITING, ids=lambda found: found.name)
def sender(request: pytest.FixtureRequest, api_for: ApiFor) -> Iterator[Sender]:
    sender = Sender(api_for(request.param.name), request.param)
    yield sender
    assert sender.mismatches == []


@pytest.fixture(params=WITH_BODY, ids=lambda found: found.name)
def reader(request: pytest.FixtureRequest, api_for: ApiFor) -> Iterator[Sender]:
    """Sends to an operation that has a request body."""
    sender = Sender(api_for(request.param.name), request.param)
    yield sender
    assert sender.mismatches == []


def test_corpus_has_60_cases_and_covers_every_operation_with_a_body() -> None:
    assert len(VALUES) + len(BODIES) >= 60
    assert {*FREE_JSON, *TEXTS} == {found.name for found in WITH_BODY}


def test_invalid_bodies_are_rejected(sender: Sender) -> None:
    for case in BODIES:
        sender.send(case.row, case.text, case.status if sender.operation.request_schema else None)


def expected(case: Case, name: str, path: list[str | int]) -> int | None:
    """The expected status.

    Short texts have limits of their own (422), a token has none. A value that is merged into a
    payload is measured when it is merged.
    """
    if case.status == 413 and (name in TEXTS or "metadata" in path):
        return None if name == "release_job" else 422
    return None if name == "replay_dead_letters" and case.row.startswith(("D13", "D14")) else case.status


def test_invalid_values_are_rejected_and_valid_ones_cause_no_server_error(reader: Sender) -> None:
    name = reader.operation.name
    for case in VALUES:
        for path in FREE_JSON.get(name) or TEXTS[name]:
            reader.send(f"{case.row} at {path}", reader.with_text(path, case.text), expected(case, name, path))


@pytest.mark.parametrize(
    "case", [case for case in VALUES if case.row.startswith(("D13", "D14"))], ids=lambda case: case.row
)
def test_merged_payload_has_the_limits_of_a_payload(case: Case, api: Api) -> None:
    job = api.dead_letter()
    merge = b'{"ids": ["%s"], "overrides": {"payload_merge": {"x": %s}}}' % (job["id"].encode(), case.text)
    assert api.http.post("/dead-letters/replay", content=merge).status_code == (case.status or 200)


@table("case", [case for case in VALUES if case.status is None])
def test_accepted_values_are_stored_exactly(case: Case, api: Api) -> None:
    sent = exact(case.text)

    def call(path: str, body: Json, method: str = "POST") -> Any:
        content = json.dumps(body).encode().replace(json.dumps(PLACEHOLDER).encode(), case.text)
        return exact(api.http.request(method, path, content=content).raise_for_status().content)

    def job() -> Any:
        return exact(api.http.get(f"/jobs/{job_id}").content)

    job_id = call("/jobs", {"job_type": "test", "queue": api.queue, "payload": PLACEHOLDER})["id"]
    assert job()["payload"] == sent
    claimed = call("/claim", {"queues": [api.queue]})["jobs"][0]
    lease = {"lease_token": claimed["lease_token"]}
    assert claimed["payload"] == sent
    call(f"/jobs/{job_id}/heartbeat", {**lease, "checkpoint": PLACEHOLDER})
    assert job()["checkpoint"] == sent
    call(f"/jobs/{job_id}/fail", {**lease, "error": {"message": "x", "details": PLACEHOLDER}, "retryable": False})
    assert job()["error"]["details"] == sent
    replay = {"ids": [job_id], "overrides": {"payload_merge": {"old": 1.50, "new": PLACEHOLDER}}}
    assert call("/dead-letters/replay", replay)["replayed"] == ("number", "1")
    assert job()["payload"].get("new") == (sent if case.text != b"null" else None)
    call(f"/jobs/{job_id}", {"payload": PLACEHOLDER, "metadata": {"x": 1}}, "PATCH")
    assert job()["payload"] == sent
    again = call("/claim", {"queues": [api.queue]})["jobs"][0]
    assert (again["payload"], again["checkpoint"]) == (sent, sent)
    call(
        "/settle",
        {
            "items": [
                {"job_id": job_id, "lease_token": again["lease_token"], "outcome": "complete", "result": PLACEHOLDER}
            ]
        },
    )
    assert job()["result"] == sent


def properties(schema: Schema, path: tuple[str | int, ...] = ()) -> Iterator[tuple[list[str | int], Schema]]:
    """Every field of a body, with its schema; of a list its first item."""
    for name, inner in component(schema).get("properties", {}).items():
        yield [*path, name], inner
        yield from properties(inner, (*path, name))
        if "items" in inner:
            yield [*path, name, 0], inner["items"]
            yield from properties(inner["items"], (*path, name, 0))


def fields(sender: Sender) -> Iterator[tuple[list[str | int], Schema]]:
    """The fields that can be set in the body of the example. List items must exist in it."""
    for path, schema in properties(sender.operation.request_schema or {}):
        try:
            sender.with_value(path, None)
        except (KeyError, IndexError):
            continue
        yield path, schema


def test_wrong_type_is_rejected_in_every_field(reader: Sender) -> None:
    """The OpenAPI document decides.

    A value that its schema does not allow is 422, including null for optional fields. A value that
    it allows causes no 5xx.
    """
    schema = Draft202012Validator({**(reader.operation.request_schema or {}), "components": openapi()["components"]})
    for path, _ in fields(reader):
        for value in WRONG_TYPES:
            body = reader.with_value(path, value)
            status = None if schema.is_valid(body) else 422
            reader.send(f"{path} = {str(value)[:20]}", json.dumps(body).encode(), status)


def test_invalid_name_is_rejected_in_every_field(reader: Sender) -> None:
    for path, schema in fields(reader):
        if "pattern" in schema:
            for kind, name in NAMES.items():
                response = reader.send(f"{path}: {kind}", json.dumps(reader.with_value(path, name)).encode(), 422)
                if kind != "NUL":
                    assert response.json()["errors"][0]["pointer"] == "/" + "/".join(str(step) for step in path)


def body_instants(found: Operation) -> set[tuple[str | int, ...]]:
    """The path of every instant in the body of an operation."""
    return {
        tuple(path) for path, schema in properties(found.request_schema or {}) if schema.get("format") == "date-time"
    }


def query_instants(found: Operation) -> list[str]:
    parameters = found.spec.get("parameters", [])
    return [
        parameter["name"]
        for parameter in parameters
        if parameter["in"] == "query" and parameter["schema"].get("format") == "date-time"
    ]


def test_instants_are_found_in_the_document() -> None:
    bodies = {found.name for found in WITH_BODY if body_instants(found)}
    assert bodies >= {
        "enqueue_job",
        "enqueue_jobs",
        "update_job",
        "cancel_jobs",
        "put_schedule",
        "create_api_key",
        "purge_dead_letters",
    }
    assert {found.name for found in operations() if query_instants(found)} >= {
        "list_jobs",
        "list_dead_letters",
        "group_dead_letters",
    }


def test_instants_outside_the_range_are_rejected_in_every_body(reader: Sender) -> None:
    """The error points at the field.

    Instants at the ends of the range are accepted, or rejected for another reason.
    """
    tested = set()
    for path, _ in fields(reader):
        if tuple(path) not in body_instants(reader.operation):
            continue
        tested.add(tuple(path))
        for instant in INSTANTS:
            response = reader.send(f"{path}: {instant}", json.dumps(reader.with_value(path, instant)).encode(), 422)
            if response.status_code == 422 and "/" + "/".join(map(str, path)) not in [
                error["pointer"] for error in response.json()["errors"]
            ]:
                reader.mismatches.append(f"{reader.operation.name}: {path}: {instant}: {response.text}")
        for instant in FIRST_AND_LAST:
            response = reader.send(f"{path}: {instant}", json.dumps(reader.with_value(path, instant)).encode())
            if "9999-12-30T23:59:59.999999Z" in response.text and response.status_code == 422:
                reader.mismatches.append(f"{reader.operation.name}: {path}: {instant}: {response.text}")
    assert tested == body_instants(reader.operation)


@pytest.mark.parametrize(
    "found", [found for found in operations() if query_instants(found)], ids=lambda found: found.name
)
def test_instants_outside_the_range_are_rejected_in_every_query(found: Operation, api_for: ApiFor) -> None:
    api = api_for(found.name)
    mismatches = []
    for name in query_instants(found):
        for status, instants in ((422, [str(instant) for instant in INSTANTS]), (200, FIRST_AND_LAST)):
            for instant in instants:
                response = api.http.request(found.method, found.path, params={name: instant})
                pointers = [error["pointer"] for error in response.json().get("errors", [])]
                if response.status_code != status or (status == 422 and pointers != [f"/query/{name}"]):
                    mismatches.append(f"{name}={instant}: {response.text[:200]}")
    assert mismatches == []


@pytest.mark.parametrize(
    "found", [found for found in operations() if found.method == "GET"], ids=lambda found: found.name
)
def test_invalid_parameters_cause_no_server_error(found: Operation, api_for: ApiFor) -> None:
    api = api_for(found.name)
    ids = SETUPS[found.name](api)
    path = with_real_ids(example(found.name)["request"]["path"], ids).partition("?")[0]
    values = [NAMES["NUL"], NAMES["SQL"], NAMES["10 kB"], *map(str, INSTANTS), "9" * 30, "NaN", "e30=", "bnVsbA=="]
    for parameter in found.spec.get("parameters", []):
        if parameter["in"] == "query" and parameter["name"] != "wait_seconds":
            for value in values:
                response = api.http.get(path, params={parameter["name"]: value})
                assert response.status_code < 500, (parameter["name"], value, response.text)


BATCHES = {
    "enqueue_jobs": (["jobs"], {"job_type": "test"}),
    "settle_jobs": (
        ["items"],
        {"job_id": "01a1e24b-7875-7000-8000-4007af56e171", "lease_token": "x", "outcome": "release"},
    ),
    "claim_jobs": (
        ["settle"],
        {"job_id": "01a1e24b-7875-7000-8000-4007af56e171", "lease_token": "x", "outcome": "release"},
    ),
    "heartbeat_leases": (["leases"], {"job_id": "01a1e24b-7875-7000-8000-4007af56e171", "lease_token": "x"}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_over_the_limit_is_rejected_as_too_large(name: str, api: Api) -> None:
    sender, (path, item) = Sender(api, operation(name)), BATCHES[name]
    for count in (1001, 20_000):
        response = sender.send(
            f"{count} items", json.dumps(sender.with_value(list(path), [item] * count)).encode(), 413
        )
        assert (response.json()["code"], response.json()["limit"]) == ("batch_too_large", 1000)
    assert sender.mismatches == []


def test_batch_of_a_million_jobs_is_rejected_as_too_large(http: httpx.Client) -> None:
    response = http.post("/jobs/batch", content=b'{"jobs": [' + b"{}," * 999_999 + b"{}]}")
    assert (response.status_code, response.json()["code"]) == (413, "batch_too_large")
