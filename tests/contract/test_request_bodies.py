"""Request bodies: integral floats, no encodings, and all errors in one response."""

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from app.http.json_pointer import format_pointer
from tests.api_client import Api, Json
from tests.contract.conftest import ApiFor
from tests.contract.document import operation
from tests.contract.test_hostile_input import WITH_BODY, Sender, fields
from tests.table import table

NO_SUCH_DATE = "must be a date and time that exist in the calendar"
CRON_FORMS = "alone, in a list (1,3), in a range (1-3) or with a step (*/3)"
TIME_ZONE = "the IANA name of a time zone, such as Europe/Berlin"


@pytest.fixture(params=WITH_BODY, ids=lambda found: found.name)
def sender(request: pytest.FixtureRequest, api_for: ApiFor) -> Iterator[Sender]:
    sender = Sender(api_for(request.param.name), request.param)
    yield sender
    assert sender.mismatches == []


def faults(problem: Json) -> list[tuple[str, str]]:
    return [(error["pointer"], error["detail"]) for error in problem.get("errors", [])]


def pointers(problem: Json) -> list[str]:
    return [error["pointer"] for error in problem.get("errors", [])]


def test_integral_float_is_an_integer_in_every_field(sender: Sender) -> None:
    for path, schema in fields(sender):
        if schema.get("type") != "integer":
            continue
        pointer, minimum = "/" + "/".join(map(str, path)), schema.get("minimum", 1)
        texts = ((f"{minimum}.0", False), (f"{minimum}.00e0", False), ("1e2", False), (f"{minimum}.5", True))
        for text, is_rejected in texts:
            problem = sender.send(f"{path} = {text}", sender.with_text(path, text.encode())).json()
            if (
                (pointer, f"{format_pointer(pointer)} must be an integer, not {text}") in faults(problem)
            ) is not is_rejected:
                sender.mismatches.append(f"{sender.operation.name}: {path} = {text}: {problem}")


def test_integer_that_no_column_can_store_is_rejected_in_every_field(sender: Sender) -> None:
    for path, schema in fields(sender):
        if schema.get("type") != "integer":
            continue
        pointer = "/" + "/".join(map(str, path))
        for text in (f"{2**63}", f"-{2**63 + 1}", f"{2**64}", "1" + "0" * 40, "1e30", "1e300"):
            problem = sender.send(f"{path} = {text}", sender.with_text(path, text.encode()), 422).json()
            if pointer not in pointers(problem):
                sender.mismatches.append(f"{sender.operation.name}: {path} = {text}: {problem}")


@table("encoding", ["gzip", "GZIP", "deflate", "br", "gzip, gzip", "identity, gzip"])
def test_encoded_body_is_rejected_by_every_operation(sender: Sender, encoding: str) -> None:
    plain = json.dumps(sender.base).encode()
    for content in (plain, gzip.compress(plain)):
        headers = {"Content-Encoding": encoding}
        response = sender.http.request(sender.operation.method, sender.path, content=content, headers=headers)
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


def test_gzip_without_a_header_is_rejected_by_every_operation(sender: Sender) -> None:
    for content in (gzip.compress(json.dumps(sender.base).encode()), gzip.compress(os.urandom(100_000))):
        response = sender.http.request(sender.operation.method, sender.path, content=content)
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
        assert response.json()["detail"] == "the body is compressed with gzip: send it as plain JSON"


@table("encodings", [("identity", "gzip"), ("gzip", "identity"), ("", "br"), ("identity, identity", "identity, zstd")])
def test_encoding_in_any_of_several_headers_is_rejected(api: Api, encodings: tuple[str, ...]) -> None:
    headers = [("Content-Encoding", encoding) for encoding in encodings]
    response = api.http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


def test_large_encoded_body_is_rejected(api: Api) -> None:
    """The body arrives in pieces, so the broker checks the headers before it is complete."""
    response = api.http.post(
        "/jobs", content=iter([gzip.compress(b"x") * 10_000]), headers={"Content-Encoding": "gzip"}
    )
    assert response.json()["code"] == "unsupported_media_type"


@table("encodings", [("identity",), ("Identity",), ("",), ("identity", "identity"), ("identity , Identity",)])
def test_content_encoding_identity_is_accepted(api: Api, encodings: tuple[str, ...]) -> None:
    headers = [("Content-Encoding", encoding) for encoding in encodings]
    response = api.http.post("/jobs", json={"job_type": "test", "queue": api.queue}, headers=headers)
    assert response.status_code == 201, response.text


@table("types", [("application/json", "text/plain"), ("application/json, text/plain",), ("application/gzip",)])
def test_any_content_types_are_accepted(api: Api, types: tuple[str, ...]) -> None:
    body = json.dumps({"job_type": "test", "queue": api.queue}).encode()
    response = api.http.post("/jobs", content=body, headers=[("Content-Type", name) for name in types])
    assert response.status_code == 201, response.text


def test_integral_floats_are_stored_as_integers_and_free_json_as_sent(api: Api) -> None:
    free = '{"n": 60.0, "m": [1.00, 6e1],  "s": " "}'
    body = (
        '{"job_type": "test", "queue": "%s", "max_attempts": 7.0, "retry": {"base_seconds": 2.5}, '
        '"payload": %s, "metadata": {"x": 1.0}}'
    )
    for path, text in (("/jobs", body), ("/jobs/batch", f'{{"jobs": [{body}]}}')):
        created = api.http.post(path, content=text % (api.queue, free)).raise_for_status().json()
        job_id = created["id"] if path == "/jobs" else created["results"][0]["job_id"]
        stored = api.http.get(f"/jobs/{job_id}").text
        assert f'"payload":{free}' in stored
        assert '"max_attempts":7,' in stored
        assert '"metadata":{"x":1.0}' in stored


ALL_INVALID: Json = {
    "queue": "..",
    "priority": "high",
    "delay_second": 5,
    "retry": {"factor": 0, "jitter": 2},
    "tags": ["", 7],
    "run_at": "0001-01-01T00:00:00Z",
}
INVALID_POINTERS = {
    "/job_type",
    "/queue",
    "/priority",
    "/delay_second",
    "/retry/factor",
    "/retry/jitter",
    "/tags/0",
    "/tags/1",
    "/run_at",
}


def test_all_errors_of_a_body_are_reported(api: Api) -> None:
    problem = api.post("/jobs", ALL_INVALID, status=422)
    assert set(pointers(problem)) == INVALID_POINTERS
    assert problem["detail"].startswith(f"{len(INVALID_POINTERS)} errors")


def test_all_errors_of_each_job_of_a_batch_are_reported(api: Api) -> None:
    problem = api.post("/jobs/batch", {"jobs": [{"job_type": "test"}, ALL_INVALID]}, status=422)
    assert set(pointers(problem)) == {f"/jobs/1{pointer}" for pointer in INVALID_POINTERS}
    result = api.post("/jobs/batch", {"jobs": [ALL_INVALID], "atomic": False}, status=207)["results"][0]
    assert set(pointers(result["problem"])) == {f"/jobs/0{pointer}" for pointer in INVALID_POINTERS}


def test_all_errors_that_a_schema_cannot_express_are_reported(api: Api) -> None:
    far = 10**9
    problem = api.enqueue(
        delay_seconds=far, unique={"key": "a", "for_seconds": far}, on_parent_failure="run", status=422
    )
    assert set(pointers(problem)) == {"/delay_seconds", "/unique/for_seconds", "/on_parent_failure"}
    settled = [
        {"job_id": "01a1e24b-7875-7000-8000-4007af56e171", "lease_token": "x", "outcome": outcome}
        for outcome in ("fail", "snooze")
    ]
    assert pointers(api.post("/settle", {"items": settled}, status=422)) == ["/items/0/error", "/items/1/delay_seconds"]
    schedule = {
        "cron": "x",
        "job": {
            "job_type": "test",
            "queue": api.queue,
            "delay_seconds": 1,
            "lease_seconds": 86_400,
            "run_at": "2030-01-01T00:00:00Z",
        },
    }
    assert {"/cron", "/job/run_at", "/job/delay_seconds"} <= set(
        pointers(api.put("/schedules/all-wrong", schedule, status=422))
    )


@table(
    ("path", "body", "count"),
    [
        ("/jobs", {"job_type": "test", **{f"x{n}": n for n in range(25)}}, 25),
        ("/jobs/batch", {"jobs": [{"job_type": "test", "delay": n} for n in range(300)]}, 300),
        ("/jobs/batch", {"jobs": [{"job_type": "test", "delay_seconds": 10**9 + n} for n in range(300)]}, 300),
        ("/settle", {"items": [{"outcome": n} for n in range(300)]}, 900),
        ("/heartbeat", {"worker_id": "w", "leases": [{}] * 300}, 600),
    ],
)
def test_ten_errors_are_listed_and_all_are_counted(api: Api, path: str, body: Json, count: int) -> None:
    problem = api.post(path, body, status=422)
    assert len(problem["errors"]) == 10
    assert problem["detail"].count(f"{count} errors, 10 listed") == 1
    assert problem["detail"].count("errors") == 1


def test_body_with_too_many_values_to_explain_is_rejected(api: Api) -> None:
    items = b",".join([b'{"a":1,"b":2,"c":3}'] * 30_000)
    for path, name in (("/settle", b"items"), ("/claim", b"settle")):
        response = api.http.post(path, content=b'{"%s":[%s]}' % (name, items))
        assert (response.status_code, len(response.json()["errors"])) == (422, 10)
    lease = b'{"job_id":"01a1e24b-7875-7000-8000-4007af56e171","lease_token":"x"}'
    response = api.http.post("/heartbeat", content=b'{"worker_id":"w","leases":[%s,{}]}' % b",".join([lease] * 20_000))
    assert (response.status_code, pointers(response.json())) == (422, ["/leases/20000"])


@table(
    ("name", "body", "details"),
    [
        (
            "enqueue_job",
            {"job_type": "a", "delay_second": 1},
            ["unknown field delay_second; did you mean delay_seconds?"],
        ),
        ("enqueue_job", {"job_type": "a", "zzz": 1}, ["unknown field zzz"]),
        ("enqueue_job", {"job_type": "a", "": 1}, ['unknown field ""']),
        ("enqueue_job", {"job_type": "a", "retry": {"": 1}}, ['unknown field retry.""']),
        *[
            ("preview_schedule", {"cron": "* * * * *", name: 1}, [f"unknown field {name}; did you mean every_seconds?"])
            for name in (
                "everySeconds",
                "EVERY_SECONDS",
                "every-seconds",
                "EverySecond",
                "every seconds",
                "evry.second",
            )
        ],
        ("enqueue_job", {}, ["required field job_type is missing"]),
        ("enqueue_job", [], ["the body must be an object, not a list"]),
        ("enqueue_job", {"job_type": "a", "retry": {"facto": 1}}, ["unknown field retry.facto; did you mean factor?"]),
        ("enqueue_job", {"job_type": "a", "delay": 1}, ["unknown field delay; did you mean delay_seconds?"]),
        ("enqueue_job", {"job_type": "a", "lease": 1}, ["unknown field lease; did you mean lease_seconds?"]),
        ("enqueue_job", {"job_type": "a", "unique": {}}, ["required field unique.key is missing"]),
        ("enqueue_jobs", {"jobs": [{"job_type": "a"}, {}]}, ["required field jobs[1].job_type is missing"]),
        ("enqueue_jobs", {"jobs": [{"job_type": "a", "zzz": 1}]}, ["unknown field jobs[0].zzz"]),
        ("enqueue_job", {"job_type": "a", "priority": 60.5}, ["priority must be an integer, not 60.5"]),
        ("enqueue_job", {"job_type": "a", "priority": None}, ["priority must be an integer, not null"]),
        ("enqueue_job", {"job_type": "a", "max_attempts": 0}, ["max_attempts must be from 1 to 1000"]),
        ("enqueue_job", {"job_type": "a", "delay_seconds": -1}, ["delay_seconds must be from 0 to 2147483647"]),
        ("enqueue_job", {"job_type": "a", "tags": ["x"] * 33}, ["tags must have at most 32 items; it has 33"]),
        (
            "enqueue_job",
            {"job_type": "a", "unique": {"key": ""}},
            ["unique.key must have 1 to 200 characters; it has 0"],
        ),
        (
            "enqueue_job",
            {"job_type": "a", "run_at": "now"},
            ["run_at must be an instant with a time zone, such as 2030-01-31T12:00:00Z"],
        ),
        ("enqueue_job", {"job_type": "a", "run_at": "2026-02-30T00:00:00Z"}, [f"run_at {NO_SUCH_DATE}"]),
        ("enqueue_job", {"job_type": "a", "depends_on": ["self"]}, ["self is not a job id"]),
        (
            "enqueue_job",
            {"job_type": "a", "run_at": "2026-01-01T00:00:00Z", "delay_seconds": 1},
            ["send either run_at or delay_seconds, not both"],
        ),
        (
            "enqueue_jobs",
            {"jobs": [{"job_type": "a", "depends_on": ["self"]}]},
            ["self is neither a job id nor a ref of this batch"],
        ),
        ("enqueue_jobs", {"jobs": []}, ["jobs must contain at least one job"]),
        ("preview_schedule", {}, ["send either cron or every_seconds"]),
        (
            "preview_schedule",
            {"cron": "* * * * *", "every_seconds": 1},
            ["send either cron or every_seconds, not both"],
        ),
        ("preview_schedule", {"cron": "60 * * * *"}, [f"cron: the minute must be 0 to 59, {CRON_FORMS}"]),
        ("preview_schedule", {"cron": "0 0 30 2 *"}, ["cron never fires: no date matches it"]),
        ("preview_schedule", {"every_seconds": 1, "timezone": "Mars"}, [f"timezone must be {TIME_ZONE}"]),
        (
            "create_api_key",
            {"name": "a", "scopes": ["admin"], "expires_at": "2020-01-01T00:00:00Z"},
            ["expires_at must be in the future"],
        ),
        (
            "enqueue_job",
            {"job_type": "a", "on_parent_failure": "x"},
            ["on_parent_failure must be one of cancel, run", "on_parent_failure requires depends_on"],
        ),
        ("enqueue_jobs", {"jobs": [{"job_type": 1}]}, ["jobs[0].job_type must be a string, not a number"]),
        ("claim_jobs", {"parent_results": 1}, ["parent_results must be true or false, not a number"]),
        ("cancel_jobs", {"ids": ["x"]}, ["ids[0] must be a UUID"]),
        (
            "claim_jobs",
            {"worker_id": "."},
            ["worker_id must be 1 to 120 of the characters A-Z a-z 0-9 . _ : - and neither . nor .."],
        ),
    ],
)
def test_errors_are_plain_sentences(api: Api, name: str, body: Any, details: list[str]) -> None:
    problem = api.post(operation(name).path, body, status=422)
    assert [error["detail"] for error in problem["errors"]] == details


def test_errors_of_queues_and_job_types_are_plain_sentences(api: Api) -> None:
    queue, job_type = f"/queues/{api.queue}", f"/job-types/{api.queue}"
    api.put(queue, {"max_running": 1})
    hint = "PATCH cannot unset a member; a PUT without it does"
    types = "type must be array, boolean, integer, null, number, object or string, or a list of distinct ones"
    cases: list[tuple[str, str, Json, str]] = [
        ("PATCH", queue, {"max_running": None}, f"max_running must be an integer, not null; {hint}"),
        ("PATCH", queue, {"rate": None}, f"rate must be an object, not null; {hint}"),
        ("PUT", queue, {"max_running": None}, "max_running must be an integer, not null"),
        ("PUT", queue, {"default_lease_seconds": 86_401}, "default_lease_seconds must be from 1 to 86400"),
        ("POST", f"{queue}/purge", {"states": []}, "states must have at least 1 item; it has 0"),
        ("PUT", job_type, {"payload_schema": {"type": "banana"}}, types),
        ("PUT", job_type, {"payload_schema": {"properties": {"a": {"type": ["string", "banana"]}}}}, types),
        ("PUT", job_type, {"payload_schema": 1}, "payload_schema must be an object or a boolean"),
    ]
    details = [
        api.http.request(method, path, json=body).json().get("errors", [{}])[0].get("detail")
        for method, path, body, _ in cases
    ]
    assert [(case[:3], detail) for case, detail in zip(cases, details, strict=True) if detail != case[3]] == []


@table(
    ("body", "detail"),
    [
        ("{", "a member name in double quotes is expected (line 1, column 2)"),
        ("{'a': 1}", "a member name in double quotes is expected (line 1, column 2)"),
        ('{"a" 1}', "a colon is expected after the member name (line 1, column 6)"),
        ('{"a":\n}', "a value is expected (line 2, column 1)"),
        ("[1 2]", "a comma or a closing bracket is expected (line 1, column 4)"),
        ("{} x", "the body continues after its JSON value (line 1, column 4)"),
        ('"a', "the string that starts here has no closing quote (line 1, column 1)"),
        ('"\t"', "a control character in a string must be escaped (line 1, column 2)"),
        (r'"\x"', 'a backslash must be followed by one of " \\ / b f n r t u (line 1, column 2)'),
        (r'"\u12"', "\\u must be followed by four hexadecimal digits (line 1, column 3)"),
    ],
)
def test_syntax_errors_are_plain_sentences(api: Api, body: str, detail: str) -> None:
    response = api.http.post("/jobs", content=body.encode())
    assert (response.status_code, response.json()["detail"]) == (400, detail)


def test_duplicate_key_is_named(api: Api) -> None:
    response = api.http.post("/jobs", content=b'{"job_type": "a", "payload": {"b": {"x\\n": 1, "x\\n": 2}}}')
    (error,) = response.json()["errors"]
    assert (error["pointer"], error["detail"]) == ("/payload/b", 'duplicate key "x\\n" in an object')
