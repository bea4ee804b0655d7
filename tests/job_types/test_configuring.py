"""GET, PUT and DELETE /job-types: what was put is told, and nothing else."""

import json

import pytest

from tests.api import Api, Json, when
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.job_types.conftest import Put
from tests.polls import Background

EVERYTHING: Json = {
    "max_attempts": 8,
    "retry": {"base_seconds": 0.5, "factor": 3.0, "max_seconds": 60.0, "jitter": 0.25, "max_attempts": 4},
    "lease_seconds": 120,
    "timeout_seconds": 900,
    "payload_schema": {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}},
}
BAD: list[tuple[Json, str, str]] = [
    ({"max_attempt": 5}, "/max_attempt", "unknown_field"),
    ({"max_attempts": 0}, "/max_attempts", "invalid"),
    ({"max_attempts": None}, "/max_attempts", "invalid"),
    ({"retry": {"factor": 0.5}}, "/retry/factor", "invalid"),
    ({"retry": {"max_attempts": 1001}}, "/retry/max_attempts", "invalid"),
    ({"retry": {"base": 1}}, "/retry/base", "unknown_field"),
    ({"lease_seconds": 0}, "/lease_seconds", "invalid"),
    ({"timeout_seconds": 2**31}, "/timeout_seconds", "invalid"),
    ({"timeout_seconds": "1h"}, "/timeout_seconds", "invalid"),
    ({"payload_schema": None}, "/payload_schema", "invalid"),
    ({"payload_schema": []}, "/payload_schema", "invalid"),
    ({"payload_schema": "object"}, "/payload_schema", "invalid"),
    ({"payload_schema": {"maximum": float("inf")}}, "/payload_schema/maximum", "unsafe_json"),
]


def told(job_type: Json) -> Json:
    """The configuration only."""
    return {name: value for name, value in job_type.items() if name not in ("name", "created_at", "updated_at")}


def names(api: Api) -> list[str]:
    """Of this test's types."""
    return [one["name"] for page in api.pages("/job-types") for one in page if one["name"].startswith(f"{api.queue}.")]


def test_what_was_put_is_told(api: Api, put: Put, job_type: str) -> None:
    put_back = put(**EVERYTHING)
    assert told(put_back) == EVERYTHING
    assert put_back["name"] == job_type
    assert put_back == api.get(f"/job-types/{job_type}")
    assert put_back in [one for page in api.pages("/job-types") for one in page]


def test_every_field_of_a_job_type_is_optional(put: Put) -> None:
    assert told(put()) == {}


def test_a_schema_is_told_as_it_was_sent(api: Api, job_type: str) -> None:
    schema = '{"maximum": 1.50,  "const": 12345678901234567890123456789, "title": "\\u00e9"}'
    response = api.http.put(f"/job-types/{job_type}", content=f'{{"payload_schema": {schema}}}')
    assert response.status_code == 200
    assert f'"payload_schema":{schema}' in response.text
    assert f'"payload_schema":{schema}' in api.http.get(f"/job-types/{job_type}").text


def test_what_is_absent_holds_no_longer(put: Put) -> None:
    first = put(**EVERYTHING)
    second = put(max_attempts=3)
    assert told(second) == {"max_attempts": 3}
    assert second["created_at"] == first["created_at"]
    assert when(second["updated_at"]) > when(first["updated_at"])


def test_a_deleted_type_is_told_as_it_was(api: Api, put: Put, job_type: str) -> None:
    put_back = put(**EVERYTHING)
    assert api.delete(f"/job-types/{job_type}") == put_back
    assert api.get(f"/job-types/{job_type}", status=404)["code"] == "not_found"
    assert api.delete(f"/job-types/{job_type}", status=404)["code"] == "not_found"
    assert names(api) == []


def test_a_type_that_comes_back_is_a_new_one(api: Api, put: Put, job_type: str) -> None:
    first = put(**EVERYTHING)
    api.delete(f"/job-types/{job_type}")
    assert when(put()["created_at"]) > when(first["created_at"])


@pytest.mark.parametrize(("config", "pointer", "code"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_configuration_is_pointed_at_and_changes_nothing(api: Api, config: Json, pointer: str, code: str) -> None:
    response = api.http.put(f"/job-types/{api.queue}.send", content=json.dumps(config))
    assert response.status_code == 422
    assert [(error["pointer"], error["code"]) for error in response.json()["errors"]] == [(pointer, code)]
    assert names(api) == []


def test_a_lease_keeps_within_the_settings(dsn: str, db: TestDatabase, queue: str) -> None:
    with threaded_broker(QUICK.model_copy(update={"min_lease_seconds": 10, "max_lease_seconds": 100}), dsn) as broker:
        api = Api(broker.http, queue)
        for seconds in (9, 101):
            problem = api.put(f"/job-types/{queue}.send", {"lease_seconds": seconds}, status=422)
            assert problem["errors"][0]["pointer"] == "/lease_seconds"
        api.put(f"/job-types/{queue}.send", {"lease_seconds": 10})


@pytest.mark.parametrize("name", ["a b", "x" * 121, "ö", "a%2Fb"])
def test_a_name_that_no_job_could_have_is_refused(api: Api, name: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        body = "{}" if method == "PUT" else ""
        assert api.http.request(method, f"/job-types/{name}", content=body).status_code == 422


def test_types_come_in_pages_in_the_order_of_their_names(api: Api) -> None:
    made = [f"{api.queue}.{name}" for name in ("b", "B", "a.1", "a-1", "a:1", "a1", "_", "A")]
    for name in made:
        api.put(f"/job-types/{name}", {})
    pages = api.pages("/job-types", limit=3)
    found = [one["name"] for page in pages for one in page]
    assert found == sorted(set(found))
    assert names(api) == sorted(made)
    assert {len(page) for page in pages[:-1]} == {3}


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 1001), ("cursor", "x"), ("colour", "red")])
def test_a_bad_parameter_is_pointed_at(api: Api, name: str, value: object) -> None:
    assert api.get("/job-types", **{name: value}, status=422)["errors"][0]["pointer"] == f"/query/{name}"


def test_changes_at_once_wait_for_each_other(api: Api, background: Background, job_type: str) -> None:
    answers = list(background.map(lambda n: api.put(f"/job-types/{job_type}", {"max_attempts": n}), range(1, 13)))
    assert [answer["max_attempts"] for answer in answers] == list(range(1, 13))
    assert len({answer["created_at"] for answer in answers}) == 1
    last = max(answers, key=lambda answer: when(answer["updated_at"]))
    assert api.get(f"/job-types/{job_type}")["updated_at"] == last["updated_at"]
