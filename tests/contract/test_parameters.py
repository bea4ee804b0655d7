"""Parameters in paths, queries and headers: numbers, and the wording of errors."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api_client import Api
from tests.contract.conftest import ApiFor
from tests.contract.document import Operation, operations
from tests.contract.test_hostile_input import LIBRARY_WORDING
from tests.contract.test_unexpected_input import example_path
from tests.table import every_case, table

TEXTS = ["", "x", "%20", "-1", "60.5", "1e2", "1e400", str(2**63), "nan", "inf", "true", "%EF%BC%95", "a%20b"]
TEXTS += ["..", "x" * 2000, "%FF", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00", "1700000000", "0x10", "5_0"]


def invalid_calls(found: Operation) -> Iterator[tuple[str, dict[str, str]]]:
    """The path and the headers of calls with one invalid parameter each."""
    for parameter in found.spec.get("parameters", []):
        name = parameter["name"]
        for text in TEXTS:
            if parameter["in"] == "query":
                # A wait in seconds that is valid would wait.
                if name != "wait_seconds" or text not in ("1e2", str(2**63), "1700000000"):
                    yield f"{example_path(found)}?{name}={text}", {}
            elif parameter["in"] == "path":
                yield example_path(found._replace(path=found.path.replace(f"{{{name}}}", text))), {}
            else:
                yield example_path(found), {name: text}


@pytest.mark.slow
def test_no_error_of_a_parameter_is_worded_by_a_library(api_for: ApiFor) -> None:
    with every_case() as case:
        for found in operations():
            for path, headers in invalid_calls(found):
                with case(f"{found.name} {path[-60:]} {headers}"):
                    response = api_for(found.name).http.request(found.method, path, headers=headers, json={})
                    assert response.status_code < 500
                    assert not LIBRARY_WORDING.search(response.text), response.text
                    assert all(not detail.endswith(" is invalid") for detail in details(response.json()))


def details(answer: Any) -> list[str]:
    return [error["detail"] for error in answer.get("errors", [])] if isinstance(answer, dict) else []


@table("text", ["2", "2.0", "2.00e0", "2e0", "0.2e1"])
def test_integral_number_is_an_integer_in_a_query(api: Api, text: str) -> None:
    api.enqueue_many(3)
    assert len(api.http.get(f"/jobs?queue={api.queue}&limit={text}").raise_for_status().json()["items"]) == 2


@table("text", ["%2B5", "%205", "5_0", "05", "0x5", "5.", ".5", "%EF%BC%95", "nan", "inf", "1e400"])
def test_text_that_is_not_a_json_number_is_no_number_in_a_query(api: Api, text: str) -> None:
    job = api.enqueue()
    for path, name, kind in (("/jobs", "limit", "an integer"), (f"/jobs/{job['id']}", "wait_seconds", "a number")):
        response = api.http.get(f"{path}?{name}={text}")
        assert (response.status_code, details(response.json())) == (422, [f"{name} must be {kind}"])


@table(
    ("query", "detail"),
    [
        ("stat=ready", "unknown parameter stat; did you mean state?"),
        ("jobType=a", "unknown parameter jobType; did you mean job_type?"),
        ("JOB-TYPE=a", "unknown parameter JOB-TYPE; did you mean job_type?"),
        ("sort=asc", "unknown parameter sort"),
        ("=a", 'unknown parameter ""'),
        ("=a&=b", '"" takes one value: send it once'),
        ("=%FF", '"" must be UTF-8 in percent escapes'),
        ("state=ready&state=running", "state takes one value: send it once"),
        ("limit=60.5", "limit must be an integer, not 60.5"),
        ("limit=1e3001", "limit must be an integer"),
        ("limit=9223372036854775808", "limit must be at most 1000"),
        ("limit=0", "limit must be at least 1"),
        ("limit=x", "limit must be an integer"),
        ("state=sleeping", "state must be one of scheduled, blocked, ready, running, completed, dead, cancelled"),
        ("queue=..", "queue must be 1 to 120 of the characters A-Z a-z 0-9 . _ : - and neither . nor .."),
        ("created_after=2026-01-01", "created_after must be an instant with a time zone, such as 2030-01-31T12:00:00Z"),
        (
            "created_after=2026-01-01T00:00:00+01:00",
            "created_after must be an instant with a time zone, such as 2030-01-31T12:00:00Z; "
            "in a URL, write the plus of a UTC offset as %2B",
        ),
        (
            "created_after=0001-01-01T00:00:00Z",
            "created_after must be from 1970-01-01T00:00:00Z to 9999-12-30T23:59:59.999999Z",
        ),
    ],
)
def test_errors_of_parameters_are_plain_sentences(api: Api, query: str, detail: str) -> None:
    response = api.http.get(f"/jobs?{query}")
    assert [error["detail"] for error in response.json()["errors"]] == [detail]


@table("path", ["/jobs?tag=%FF", "/jobs?tag=a%C3", "/jobs?queue=x&tag=%ED%A0%80"])
def test_percent_escapes_in_a_query_must_be_utf8(api: Api, path: str) -> None:
    api.enqueue(tags=["\N{REPLACEMENT CHARACTER}"])
    problem = api.http.get(path)
    faults = [(error["pointer"], error["detail"]) for error in problem.json().get("errors", [])]
    assert (problem.status_code, faults) == (422, [("/query/tag", "tag must be UTF-8 in percent escapes")])


def test_name_of_a_parameter_must_be_utf8(api: Api) -> None:
    problem = api.http.get("/jobs?%FF=a")
    faults = problem.json()["errors"]
    assert (problem.status_code, faults[0]["pointer"]) == (422, "/query/\N{REPLACEMENT CHARACTER}")
    assert faults[0]["detail"] == "\N{REPLACEMENT CHARACTER} must be UTF-8 in percent escapes"


def test_replacement_character_can_be_sent_in_a_query(api: Api) -> None:
    job = api.enqueue(tags=["\N{REPLACEMENT CHARACTER}"])
    assert [found["id"] for found in api.get("/jobs?tag=%EF%BF%BD")["items"]] == [job["id"]]
