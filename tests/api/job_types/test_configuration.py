"""GET, PUT and DELETE /job-types: responses contain the members that were set, and no others."""

import json

from tests.api.job_types.conftest import Put
from tests.api_client import Api, Json, parse_time
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table

FULL_CONFIG: Json = {
    "max_attempts": 8,
    "retry": {"base_seconds": 0.5, "factor": 3.0, "max_seconds": 60.0, "jitter": 0.25, "max_attempts": 4},
    "lease_seconds": 120,
    "timeout_seconds": 900,
    "payload_schema": {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}},
}
INVALID_CONFIGS: list[tuple[Json, str, str]] = [
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


def config_of(job_type: Json) -> Json:
    """The configuration of a job type, without its name and times."""
    return {name: value for name, value in job_type.items() if name not in ("name", "created_at", "updated_at")}


def names(api: Api) -> list[str]:
    """The names of the job types of this test."""
    return [
        item["name"] for page in api.pages("/job-types") for item in page if item["name"].startswith(f"{api.queue}.")
    ]


def test_put_get_and_list_return_the_configuration(api: Api, put: Put, job_type: str) -> None:
    response = put(**FULL_CONFIG)
    assert config_of(response) == FULL_CONFIG
    assert response["name"] == job_type
    assert response == api.get(f"/job-types/{job_type}")
    assert response in [item for page in api.pages("/job-types") for item in page]


def test_every_member_of_a_job_type_is_optional(put: Put) -> None:
    assert config_of(put()) == {}


def test_schema_is_returned_with_its_original_text(api: Api, job_type: str) -> None:
    schema = '{"maximum": 1.50,  "const": 12345678901234567890123456789, "title": "\\u00e9"}'
    response = api.http.put(f"/job-types/{job_type}", content=f'{{"payload_schema": {schema}}}')
    assert response.status_code == 200
    assert f'"payload_schema":{schema}' in response.text
    assert f'"payload_schema":{schema}' in api.http.get(f"/job-types/{job_type}").text


def test_put_unsets_absent_members(put: Put) -> None:
    first = put(**FULL_CONFIG)
    second = put(max_attempts=3)
    assert config_of(second) == {"max_attempts": 3}
    assert second["created_at"] == first["created_at"]
    assert parse_time(second["updated_at"]) > parse_time(first["updated_at"])


def test_delete_returns_the_last_state(api: Api, put: Put, job_type: str) -> None:
    response = put(**FULL_CONFIG)
    assert api.delete(f"/job-types/{job_type}") == response
    assert api.get(f"/job-types/{job_type}", status=404)["code"] == "not_found"
    assert api.delete(f"/job-types/{job_type}", status=404)["code"] == "not_found"
    assert names(api) == []


def test_put_after_a_delete_creates_a_new_job_type(api: Api, put: Put, job_type: str) -> None:
    first = put(**FULL_CONFIG)
    api.delete(f"/job-types/{job_type}")
    assert parse_time(put()["created_at"]) > parse_time(first["created_at"])


@table(("config", "pointer", "code"), INVALID_CONFIGS)
def test_invalid_configuration_is_rejected_with_a_pointer_and_changes_nothing(
    api: Api, config: Json, pointer: str, code: str
) -> None:
    response = api.http.put(f"/job-types/{api.queue}.send", content=json.dumps(config))
    assert response.status_code == 422
    assert [(error["pointer"], error["code"]) for error in response.json()["errors"]] == [(pointer, code)]
    assert names(api) == []


def test_lease_must_be_within_the_bounds_of_the_settings(dsn: str, db: TestDatabase, queue: str) -> None:
    with threaded_broker(
        TEST_SETTINGS.model_copy(update={"min_lease_seconds": 10, "max_lease_seconds": 100}), dsn
    ) as broker:
        api = Api(broker.http, queue)
        for seconds in (9, 101):
            problem = api.put(f"/job-types/{queue}.send", {"lease_seconds": seconds}, status=422)
            assert problem["errors"][0]["pointer"] == "/lease_seconds"
        api.put(f"/job-types/{queue}.send", {"lease_seconds": 10})


@table("name", ["a b", "x" * 121, "ö", "a%2Fb"])
def test_invalid_job_type_name_is_rejected(api: Api, name: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        body = "{}" if method == "PUT" else ""
        assert api.http.request(method, f"/job-types/{name}", content=body).status_code == 422


def test_list_returns_job_types_sorted_by_name_in_pages(api: Api) -> None:
    created_names = [f"{api.queue}.{name}" for name in ("b", "B", "a.1", "a-1", "a:1", "a1", "_", "A")]
    for name in created_names:
        api.put(f"/job-types/{name}", {})
    pages = api.pages("/job-types", limit=3)
    listed_names = [item["name"] for page in pages for item in page]
    assert listed_names == sorted(set(listed_names))
    assert names(api) == sorted(created_names)
    assert {len(page) for page in pages[:-1]} == {3}


def test_concurrent_puts_are_serialized(api: Api, background: Background, job_type: str) -> None:
    responses = list(background.map(lambda n: api.put(f"/job-types/{job_type}", {"max_attempts": n}), range(1, 13)))
    assert [response["max_attempts"] for response in responses] == list(range(1, 13))
    assert len({response["created_at"] for response in responses}) == 1
    last = max(responses, key=lambda response: parse_time(response["updated_at"]))
    assert api.get(f"/job-types/{job_type}")["updated_at"] == last["updated_at"]
