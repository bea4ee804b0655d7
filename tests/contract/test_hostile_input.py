"""Bad input on every route that takes a body: the 4xx that FAULTS section D names, never a 5xx, and no silent change of what is taken."""

import copy
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.api import Api, Json
from tests.contract.arrangements import ARRANGED, example, with_real_names
from tests.contract.conftest import Served
from tests.contract.document import Operation, Schema, component, openapi, operation, operations
from tests.contract.hostile import BODIES, FIRST_AND_LAST, INSTANTS, NAMES, VALUES, Case, exactly

CHANGING = [found for found in operations() if found.method in ("POST", "PATCH", "PUT")]
TAKING = [found for found in CHANGING if found.takes is not None]
HERE = "@here@"
LIBRARY_WORDING = re.compile(r"Expected `|Object (missing|contains)|Input should|Value error|matching regex|valid enum")
WRONG: list[Any] = [None, True, -1, 1.5, 10**30, "", "x" * 10_000, [], {}, [[]], {"a": 1}]

# Where each route takes free JSON; those that take none get the values in place of a text.
SLOTS: dict[str, list[list[str | int]]] = {
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
    """Sends to an operation what its example sends, with one thing changed; notes what went wrong, to be asserted at the end."""

    def __init__(self, api: Api, found: Operation) -> None:
        sent = with_real_names(example(found.name)["request"], ARRANGED[found.name](api))
        self.http = api.http
        self.operation = found
        self.path: str = sent["path"]
        self.base: Json = sent.get("body", {})
        self.base.pop("wait_seconds", None)
        self.wrong: list[str] = []

    def send(self, what: str, content: bytes, status: int | None = None) -> httpx.Response:
        response = self.http.request(self.operation.method, self.path, content=content)
        if response.status_code >= 500 or (status is not None and response.status_code != status):
            self.wrong.append(
                f"{self.operation.name}: {what}: {response.status_code}, not {status or 'below 500'}: {response.text[:150]}"
            )
        if response.status_code == 422 and LIBRARY_WORDING.search(response.text):
            self.wrong.append(f"{self.operation.name}: {what}: in the words of a library: {response.text[:300]}")
        return response

    def with_value(self, place: list[str | int], value: Any) -> Json:
        changed = copy.deepcopy(self.base)
        inner: Any = changed
        for step, following in itertools.pairwise(place):
            if isinstance(following, int) and step not in inner:
                raise KeyError(step)  # no list that it could stand in
            inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
        inner[place[-1]] = value
        return changed

    def with_text(self, place: list[str | int], text: bytes) -> bytes:
        return json.dumps(self.with_value(place, HERE)).encode().replace(json.dumps(HERE).encode(), text)


@pytest.fixture(params=CHANGING, ids=lambda found: found.name)
def sender(request: pytest.FixtureRequest, serving: Served) -> Iterator[Sender]:
    sender = Sender(serving(request.param.name), request.param)
    yield sender
    assert sender.wrong == []


@pytest.fixture(params=TAKING, ids=lambda found: found.name)
def reader(request: pytest.FixtureRequest, serving: Served) -> Iterator[Sender]:
    """A sender to an operation that reads its body."""
    sender = Sender(serving(request.param.name), request.param)
    yield sender
    assert sender.wrong == []


def test_the_corpus_is_as_large_as_was_asked() -> None:
    assert len(VALUES) + len(BODIES) >= 60
    assert {*SLOTS, *TEXTS} == {found.name for found in TAKING}


def test_bad_bodies_are_refused(sender: Sender) -> None:
    for case in BODIES:
        sender.send(case.row, case.text, case.status if sender.operation.takes else None)


def expected(case: Case, name: str, place: list[str | int]) -> int | None:
    """Short texts have caps of their own (422), a token has none; what is merged into a payload is measured when it is merged."""
    if case.status == 413 and (name in TEXTS or "metadata" in place):
        return None if name == "release_job" else 422
    return None if name == "replay_dead_letters" and case.row.startswith(("D13", "D14")) else case.status


def test_bad_values_are_refused_and_good_ones_break_nothing(reader: Sender) -> None:
    name = reader.operation.name
    for case in VALUES:
        for place in SLOTS.get(name) or TEXTS[name]:
            reader.send(f"{case.row} at {place}", reader.with_text(place, case.text), expected(case, name, place))


@pytest.mark.parametrize(
    "case", [case for case in VALUES if case.row.startswith(("D13", "D14"))], ids=lambda case: case.row
)
def test_what_is_merged_into_a_payload_has_its_caps(case: Case, api: Api) -> None:
    job = api.dead()
    merge = b'{"ids": ["%s"], "overrides": {"payload_merge": {"x": %s}}}' % (job["id"].encode(), case.text)
    assert api.http.post("/dead-letters/replay", content=merge).status_code == (case.status or 200)


@pytest.mark.parametrize("case", [case for case in VALUES if case.status is None], ids=lambda case: case.row)
def test_what_is_taken_is_kept_value_for_value(case: Case, api: Api) -> None:
    sent = exactly(case.text)

    def call(path: str, body: Json, method: str = "POST") -> Any:
        content = json.dumps(body).encode().replace(json.dumps(HERE).encode(), case.text)
        return exactly(api.http.request(method, path, content=content).raise_for_status().content)

    def job() -> Any:
        return exactly(api.http.get(f"/jobs/{job_id}").content)

    job_id = call("/jobs", {"job_type": "test", "queue": api.queue, "payload": HERE})["id"]
    assert job()["payload"] == sent
    claimed = call("/claim", {"queues": [api.queue]})["jobs"][0]
    lease = {"lease_token": claimed["lease_token"]}
    assert claimed["payload"] == sent
    call(f"/jobs/{job_id}/heartbeat", {**lease, "checkpoint": HERE})
    assert job()["checkpoint"] == sent
    call(f"/jobs/{job_id}/fail", {**lease, "error": {"message": "x", "details": HERE}, "retryable": False})
    assert job()["error"]["details"] == sent
    replay = {"ids": [job_id], "overrides": {"payload_merge": {"old": 1.50, "new": HERE}}}
    assert call("/dead-letters/replay", replay)["replayed"] == ("number", "1")
    assert job()["payload"].get("new") == (sent if case.text != b"null" else None)
    call(f"/jobs/{job_id}", {"payload": HERE, "metadata": {"x": 1}}, "PATCH")
    assert job()["payload"] == sent
    again = call("/claim", {"queues": [api.queue]})["jobs"][0]
    assert (again["payload"], again["checkpoint"]) == (sent, sent)
    call(
        "/settle",
        {"items": [{"job_id": job_id, "lease_token": again["lease_token"], "outcome": "complete", "result": HERE}]},
    )
    assert job()["result"] == sent


def properties(schema: Schema, place: tuple[str | int, ...] = ()) -> Iterator[tuple[list[str | int], Schema]]:
    """Every field that a body may have, with its schema; of a list its first item."""
    for name, inner in component(schema).get("properties", {}).items():
        yield [*place, name], inner
        yield from properties(inner, (*place, name))
        if "items" in inner:
            yield [*place, name, 0], inner["items"]
            yield from properties(inner["items"], (*place, name, 0))


def fields(sender: Sender) -> Iterator[tuple[list[str | int], Schema]]:
    """Those that can be set in the example's body: what stands in a list has to be there already."""
    for place, schema in properties(sender.operation.takes or {}):
        try:
            sender.with_value(place, None)
        except (KeyError, IndexError):
            continue
        yield place, schema


def test_a_wrong_type_is_refused_in_every_field(reader: Sender) -> None:
    """The document decides: what its schema does not allow is 422, null for optional fields included; what it allows is not a 5xx."""
    schema = Draft202012Validator({**(reader.operation.takes or {}), "components": openapi()["components"]})
    for place, _ in fields(reader):
        for value in WRONG:
            body = reader.with_value(place, value)
            status = None if schema.is_valid(body) else 422
            reader.send(f"{place} = {str(value)[:20]}", json.dumps(body).encode(), status)


def test_a_bad_name_is_refused_wherever_a_name_stands(reader: Sender) -> None:
    for place, schema in fields(reader):
        if "pattern" in schema:
            for what, name in NAMES.items():
                response = reader.send(f"{place}: {what}", json.dumps(reader.with_value(place, name)).encode(), 422)
                if what != "NUL":
                    assert response.json()["errors"][0]["pointer"] == "/" + "/".join(str(step) for step in place)


def instants_of(found: Operation) -> set[tuple[str | int, ...]]:
    """The path of every instant that the body may have."""
    return {tuple(place) for place, schema in properties(found.takes or {}) if schema.get("format") == "date-time"}


def queried_instants(found: Operation) -> list[str]:
    parameters = found.spec.get("parameters", [])
    return [one["name"] for one in parameters if one["in"] == "query" and one["schema"].get("format") == "date-time"]


def test_instants_are_found_in_the_document() -> None:
    bodies = {found.name for found in TAKING if instants_of(found)}
    assert bodies >= {
        "enqueue_job",
        "enqueue_jobs",
        "update_job",
        "cancel_jobs",
        "put_schedule",
        "create_api_key",
        "purge_dead_letters",
    }
    assert {found.name for found in operations() if queried_instants(found)} >= {
        "list_jobs",
        "list_dead_letters",
        "group_dead_letters",
    }


def test_instants_outside_the_range_are_refused_in_every_body(reader: Sender) -> None:
    """The error points at the field. Instants at the ends of the range are accepted, or refused for another reason."""
    tried = set()
    for place, _ in fields(reader):
        if tuple(place) not in instants_of(reader.operation):
            continue
        tried.add(tuple(place))
        for instant in INSTANTS:
            response = reader.send(f"{place}: {instant}", json.dumps(reader.with_value(place, instant)).encode(), 422)
            if response.status_code == 422 and "/" + "/".join(map(str, place)) not in [
                one["pointer"] for one in response.json()["errors"]
            ]:
                reader.wrong.append(f"{reader.operation.name}: {place}: {instant}: {response.text}")
        for instant in FIRST_AND_LAST:
            response = reader.send(f"{place}: {instant}", json.dumps(reader.with_value(place, instant)).encode())
            if "9999-12-30T23:59:59.999999Z" in response.text and response.status_code == 422:
                reader.wrong.append(f"{reader.operation.name}: {place}: {instant}: {response.text}")
    assert tried == instants_of(reader.operation)


@pytest.mark.parametrize(
    "found", [found for found in operations() if queried_instants(found)], ids=lambda found: found.name
)
def test_instants_outside_the_range_are_refused_in_every_query(found: Operation, serving: Served) -> None:
    api = serving(found.name)
    wrong = []
    for name in queried_instants(found):
        for status, instants in ((422, [str(one) for one in INSTANTS]), (200, FIRST_AND_LAST)):
            for instant in instants:
                response = api.http.request(found.method, found.path, params={name: instant})
                pointers = [one["pointer"] for one in response.json().get("errors", [])]
                if response.status_code != status or (status == 422 and pointers != [f"/query/{name}"]):
                    wrong.append(f"{name}={instant}: {response.text[:200]}")
    assert wrong == []


@pytest.mark.parametrize(
    "found", [found for found in operations() if found.method == "GET"], ids=lambda found: found.name
)
def test_bad_parameters_are_no_error_of_ours(found: Operation, serving: Served) -> None:
    api = serving(found.name)
    names = ARRANGED[found.name](api)
    path = with_real_names(example(found.name)["request"]["path"], names).partition("?")[0]
    wrong = [NAMES["NUL"], NAMES["SQL"], NAMES["10 kB"], *map(str, INSTANTS), "9" * 30, "NaN", "e30=", "bnVsbA=="]
    for parameter in found.spec.get("parameters", []):
        if parameter["in"] == "query" and parameter["name"] != "wait_seconds":
            for value in wrong:
                response = api.http.get(path, params={parameter["name"]: value})
                assert response.status_code < 500, (parameter["name"], value, response.text)


HUGE = {
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


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_batch_is_refused_as_such(name: str, api: Api) -> None:
    sender, (place, item) = Sender(api, operation(name)), HUGE[name]
    for count in (1001, 20_000):
        response = sender.send(
            f"{count} items", json.dumps(sender.with_value(list(place), [item] * count)).encode(), 413
        )
        assert (response.json()["code"], response.json()["limit"]) == ("batch_too_large", 1000)
    assert sender.wrong == []


def test_a_million_jobs_are_refused_as_such(http: httpx.Client) -> None:
    response = http.post("/jobs/batch", content=b'{"jobs": [' + b"{}," * 999_999 + b"{}]}")
    assert (response.status_code, response.json()["code"]) == (413, "batch_too_large")
