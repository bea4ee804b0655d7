"""openapi.json is up to date, and has the form that client generators need."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import httpx
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.api_client import Api, Json
from tests.contract.document import Operation, app, openapi, operations, request_components, schemas
from tests.paths import ROOT
from tests.table import table

FILE = ROOT / "openapi" / "openapi.json"
each_operation = table("operation", operations())

# Objects whose keys the user chooses.
FREE_MAPS = {"metadata", "payload_merge"}


def routes() -> list[APIRoute]:
    """The routes of all routers that the app includes. FastAPI keeps each router as one entry."""
    routers = [app(), *[entry.original_router for entry in app().routes if hasattr(entry, "original_router")]]
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def test_openapi_file_is_up_to_date() -> None:
    assert json.loads(FILE.read_text()) == openapi(), "run `make openapi`"


def test_broker_serves_the_same_document(http: httpx.Client) -> None:
    assert http.get("/openapi.json").json() == openapi()


def test_document_is_valid_openapi_3_1() -> None:
    assert openapi()["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(openapi()).validate()


def test_every_route_except_the_docs_is_in_the_document() -> None:
    hidden = {route.path for route in routes() if not route.include_in_schema}
    assert hidden == {"/docs", "/docs/start.js", "/docs/{asset}"}
    served = {(method, route.path) for route in routes() if route.include_in_schema for method in route.methods or ()}
    assert served == {(operation.method, operation.path) for operation in operations()}


def test_operation_id_is_the_name_of_the_function() -> None:
    served = {(method, route.path): route.endpoint.__name__ for route in routes() for method in route.methods or ()}
    assert {operation.name: served[operation.method, operation.path] for operation in operations()} == {
        operation.name: operation.name for operation in operations()
    }


def test_operation_ids_are_unique() -> None:
    names = [operation.name for operation in operations()]
    assert len(set(names)) == len(names)


@each_operation
def test_operation_id_is_a_verb_and_a_noun(operation: Operation) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", operation.name)


def test_tag_of_an_operation_is_its_package() -> None:
    packages = {route.endpoint.__name__: route.endpoint.__module__.split(".")[1] for route in routes()}
    # For callers enqueue and explain belong to jobs, and a purge to queues. Their packages are
    # others, because enqueue and explain depend on most packages, and queues knows no jobs.
    tags = {"http": "operations", "enqueue": "jobs", "explain": "jobs"}
    for operation in operations():
        package = packages[operation.name]
        expected = "queues" if operation.name == "purge_queue" else tags.get(package, package)
        assert operation.spec["tags"] == [expected]


@each_operation
def test_operation_has_a_description_and_a_summary(operation: Operation) -> None:
    assert len(operation.spec["description"]) > 10
    assert operation.spec["summary"]


def test_every_put_requires_a_body() -> None:
    required = {
        operation.name: operation.spec["requestBody"]["required"]
        for operation in operations()
        if operation.method == "PUT"
    }
    assert required == dict.fromkeys(required, True)


def test_api_key_is_optional_in_every_operation() -> None:
    """`{}` makes the key optional: a broker without API keys needs none."""
    with_scopes = [operation for operation in operations() if operation.spec["security"]]
    assert len(with_scopes) > 30
    assert [operation.name for operation in with_scopes if {} not in operation.spec["security"]] == []


def test_every_dry_run_is_described() -> None:
    described = {
        location: schema.get("description", "") for location, schema in schemas() if location.endswith(".dry_run")
    }
    assert len(described) == 8, "four requests and their responses"
    requests = r"Only counts the matches and changes nothing\. Default (true|false)\."
    expected = re.compile(rf"{requests}|True if this was a dry run, in which nothing changed\. Otherwise absent\.")
    assert [location for location, text in described.items() if not expected.fullmatch(text)] == []


# Bodies that satisfy or violate the constraints across fields.
BULK_TARGETS: list[tuple[Json, bool]] = [
    ({"ids": []}, True),
    ({"ids": [], "all": False}, True),
    ({"filter": {"queue": "q"}}, True),
    ({"filter": {"queue": "q"}, "all": True}, True),
    ({"filter": {}, "all": True}, True),
    ({"all": True}, True),
    ({}, False),
    ({"all": False}, False),
    ({"filter": {}}, False),
    ({"filter": {}, "all": False}, False),
    ({"ids": [], "filter": {"queue": "q"}}, False),
    ({"ids": [], "all": True}, False),
]
TIMES: list[tuple[Json, bool]] = [
    ({"cron": "@daily"}, True),
    ({"every_seconds": 60}, True),
    ({}, False),
    ({"timezone": "UTC"}, False),
    ({"cron": "@daily", "every_seconds": 60}, False),
]
JOBS: list[tuple[Json, bool]] = [
    ({"run_at": "2026-01-01T00:00:00Z"}, True),
    ({"delay_seconds": 1}, True),
    ({"run_at": "2026-01-01T00:00:00Z", "delay_seconds": 1}, False),
    ({"on_parent_failure": "run"}, False),
    ({"on_parent_failure": "run", "depends_on": []}, True),
]
OUTCOMES: list[tuple[Json, bool]] = [
    ({"outcome": "complete"}, True),
    ({"outcome": "release"}, True),
    ({"outcome": "fail", "error": {"message": "no"}}, True),
    ({"outcome": "fail"}, False),
    ({"outcome": "fail", "delay_seconds": 1}, False),
    ({"outcome": "snooze", "delay_seconds": 1}, True),
    ({"outcome": "snooze"}, False),
    ({"outcome": "snooze", "error": {"message": "no"}}, False),
]


class ConstrainedBody(NamedTuple):
    """A call whose body is a component, or a list `wrapped_in` with one, and the cases of the component."""

    method: str
    path: str
    cases: list[tuple[Json, bool]]
    other_members: Json
    wrapped_in: str | None = None

    def bodies(self) -> Iterator[tuple[Json, Json, bool]]:
        """The component, the body of the call, and whether they are valid."""
        for members, is_valid in self.cases:
            item = {**self.other_members, **members}
            yield item, item if self.wrapped_in is None else {self.wrapped_in: [item]}, is_valid


UNKNOWN = "01a1e24b-7875-7000-8000-4007af56e171"
JOB = {"job_type": "test"}
CONSTRAINED = {
    "CancelJobs": ConstrainedBody("POST", "/jobs/cancel", BULK_TARGETS, {"dry_run": True}),
    "ReplayDeadLetters": ConstrainedBody("POST", "/dead-letters/replay", BULK_TARGETS, {"dry_run": True}),
    "PurgeDeadLetters": ConstrainedBody("POST", "/dead-letters/purge", BULK_TARGETS, {}),
    "SchedulePreview": ConstrainedBody("POST", "/schedules/preview", TIMES, {}),
    "SchedulePut": ConstrainedBody("PUT", "/schedules/constrained", TIMES, {"job": JOB}),
    "JobCreate": ConstrainedBody("POST", "/jobs", JOBS, JOB),
    "BatchJob": ConstrainedBody("POST", "/jobs/batch", JOBS, JOB, wrapped_in="jobs"),
    "Settlement": ConstrainedBody(
        "POST", "/settle", OUTCOMES, {"job_id": UNKNOWN, "lease_token": "x"}, wrapped_in="items"
    ),
}


def test_constraints_across_fields_are_the_same_in_schema_and_broker(api: Api) -> None:
    components = openapi()["components"]["schemas"]
    keywords = {"not", "if", "dependentRequired"}
    assert {name for name, schema in components.items() if schema.keys() & keywords} == set(CONSTRAINED)
    wrong = []
    for name, call in CONSTRAINED.items():
        schema = validator({**components[name], "components": openapi()["components"]})
        for item, body, is_valid in call.bodies():
            status = api.http.request(call.method, call.path, json=body).status_code
            if (schema.is_valid(item), status) not in ([(True, 200), (True, 201)] if is_valid else [(False, 422)]):
                wrong.append((name, item, schema.is_valid(item), status))
    assert wrong == []


@each_operation
def test_default_response_is_a_problem(operation: Operation) -> None:
    content = operation.spec["responses"]["default"]["content"]
    assert list(content) == ["application/problem+json"]
    assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}


@each_operation
def test_every_body_has_an_example_that_matches_its_schema(operation: Operation) -> None:
    for part, content in operation.bodies():
        assert "example" in content, part
        validator({**content["schema"], "components": openapi()["components"]}).validate(content["example"])


def validator(schema: dict[str, object]) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def test_no_schema_is_a_union() -> None:
    """No anyOf with null, no oneOf, no discriminator: generators make unions of them, or fail."""
    unions = [
        location
        for location, schema in schemas()
        if schema.keys() & {"anyOf", "oneOf", "allOf", "discriminator", "nullable"}
    ]
    assert unions == []


def test_no_schema_allows_null() -> None:
    assert [location for location, schema in schemas() if "null" in str(schema.get("type"))] == []


def test_no_schema_has_a_default() -> None:
    assert [location for location, schema in schemas() if "default" in schema] == []


def test_every_number_has_a_format() -> None:
    formats = {"integer": {"int32", "int64"}, "number": {"double"}}
    without_format = [
        location
        for location, schema in schemas()
        if schema.get("type") in formats and schema.get("format") not in formats[schema["type"]]
    ]
    assert without_format == []


def test_objects_and_enums_are_named_components() -> None:
    """The only inline objects are free maps, whose keys the user chooses."""
    components = set(openapi()["components"]["schemas"])
    inline = [
        location
        for location, schema in schemas()
        if location not in components and ("properties" in schema or "enum" in schema)
    ]
    maps = {
        location.rsplit(".", 1)[1]
        for location, schema in schemas()
        if location not in components and schema.get("type") == "object"
    }
    assert (inline, maps) == ([], FREE_MAPS)


def test_free_json_has_no_type() -> None:
    """`{}`, or only a description: any value, so that no generator requires an object."""
    for name in ("payload", "result", "checkpoint", "details"):
        found = [schema for location, schema in schemas() if location.endswith(f".{name}")]
        assert found
        assert all(schema.keys() <= {"description"} for schema in found), name


def test_requests_forbid_additional_properties_and_responses_allow_them() -> None:
    strict = {
        name
        for name, schema in openapi()["components"]["schemas"].items()
        if schema.get("additionalProperties") is False
    }
    requests = {name for name in request_components() if "properties" in openapi()["components"]["schemas"][name]}
    assert strict == requests


def test_responses_have_no_enums() -> None:
    """A member with new values in the future is a string whose values are described.

    An old client must not fail on a new state.
    """
    request_enums = request_components() | {
        parameter["schema"]["$ref"].rsplit("/", 1)[1]
        for operation in operations()
        for parameter in operation.spec.get("parameters", [])
        if "$ref" in parameter["schema"]
    }
    assert {name for name, schema in openapi()["components"]["schemas"].items() if "enum" in schema} <= request_enums


def test_document_does_not_contain_the_errors_of_fastapi() -> None:
    assert "ValidationError" not in json.dumps(openapi())


def test_every_component_is_used() -> None:
    text = json.dumps(openapi())
    assert [name for name in openapi()["components"]["schemas"] if f'"#/components/schemas/{name}"' not in text] == []
