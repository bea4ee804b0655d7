"""openapi.json is what the app says, and says it the way that client generators need it (API.md, "What generators need")."""

import json
import re
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.api import Api, Json
from tests.contract.document import Operation, app, openapi, operations, request_components, schemas

FILE = Path(__file__).parents[2] / "openapi" / "openapi.json"
each_operation = pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.name)

# Keys that users choose: what stands below is theirs.
FREE_MAPS = {"metadata", "payload_merge"}


def routes() -> list[APIRoute]:
    """Of the routers that `main` included, each of which FastAPI keeps as one entry."""
    routers = [app(), *[entry.original_router for entry in app().routes if hasattr(entry, "original_router")]]
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def test_the_file_is_what_the_app_says() -> None:
    assert json.loads(FILE.read_text()) == openapi(), "run `make openapi`"


def test_the_broker_serves_the_same_document(http: httpx.Client) -> None:
    assert http.get("/openapi.json").json() == openapi()


def test_it_is_valid_openapi_3_1() -> None:
    assert openapi()["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(openapi()).validate()


def test_every_route_is_in_the_document_but_the_docs() -> None:
    hidden = {route.path for route in routes() if not route.include_in_schema}
    assert hidden == {"/docs", "/docs/start.js", "/docs/{asset}"}
    served = {(method, route.path) for route in routes() if route.include_in_schema for method in route.methods or ()}
    assert served == {(operation.method, operation.path) for operation in operations()}


def test_an_operation_is_named_for_its_function() -> None:
    served = {(method, route.path): route.endpoint.__name__ for route in routes() for method in route.methods or ()}
    assert {operation.name: served[operation.method, operation.path] for operation in operations()} == {
        operation.name: operation.name for operation in operations()
    }


def test_names_of_operations_are_unique() -> None:
    names = [operation.name for operation in operations()]
    assert len(set(names)) == len(names)


@each_operation
def test_an_operation_is_a_verb_and_a_noun(operation: Operation) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", operation.name)


def test_tags_are_rooms() -> None:
    rooms = {route.endpoint.__name__: route.endpoint.__module__.split(".")[1] for route in routes()}
    # A purge knows jobs, which queues do not, and explain knows all that holds one back; for callers they are of the queue and the job.
    others = {"web": "operations", "purging": "queues", "explain": "jobs"}
    for operation in operations():
        room = rooms[operation.name]
        assert operation.spec["tags"] == [others.get(room, room)]


@each_operation
def test_an_operation_is_described(operation: Operation) -> None:
    assert len(operation.spec["description"]) > 10
    assert operation.spec["summary"]


def test_every_put_requires_a_body() -> None:
    required = {
        operation.name: operation.spec["requestBody"]["required"]
        for operation in operations()
        if operation.method == "PUT"
    }
    assert required == dict.fromkeys(required, True)


def test_a_broker_without_keys_needs_none() -> None:
    """`{}` makes the key optional for every operation that takes one."""
    guarded = [operation for operation in operations() if operation.spec["security"]]
    assert len(guarded) > 30
    assert [operation.name for operation in guarded if {} not in operation.spec["security"]] == []


def test_every_dry_run_is_described() -> None:
    described = {place: schema.get("description", "") for place, schema in schemas() if place.endswith(".dry_run")}
    assert len(described) == 8, "four requests and their responses"
    requests = r"Only counts the matches and changes nothing\. Default (true|false)\."
    expected = re.compile(rf"{requests}|True if this was a dry run, in which nothing changed\. Otherwise absent\.")
    assert [place for place, text in described.items() if not expected.fullmatch(text)] == []


def test_fields_that_exclude_each_other_are_refused_together(api: Api) -> None:
    """The broker refuses what the schema forbids."""
    filters: Json = {"ids": [], "filter": {"queue": api.queue}}
    times: Json = {"cron": "@daily", "every_seconds": 60}
    job: Json = {"job_type": "test", "run_at": "2026-01-01T00:00:00Z", "delay_seconds": 1}
    calls: dict[str, tuple[str, str, Json]] = {
        "CancelJobs": ("POST", "/jobs/cancel", filters),
        "ReplayDeadLetters": ("POST", "/dead-letters/replay", filters),
        "PurgeDeadLetters": ("POST", "/dead-letters/purge", filters),
        "SchedulePreview": ("POST", "/schedules/preview", times),
        "SchedulePut": ("PUT", f"/schedules/{api.queue}", {**times, "job": {"job_type": "test"}}),
        "JobCreate": ("POST", "/jobs", job),
        "BatchJob": ("POST", "/jobs/batch", {"jobs": [job]}),
    }
    components = openapi()["components"]["schemas"]
    assert {name for name, schema in components.items() if "not" in schema} == set(calls)
    for name, (method, path, body) in calls.items():
        assert not validator({**components[name], "components": openapi()["components"]}).is_valid(
            body.get("jobs", [body])[0]
        ), name
        assert api.http.request(method, path, json=body).status_code == 422, name


@each_operation
def test_any_other_answer_is_a_problem(operation: Operation) -> None:
    content = operation.spec["responses"]["default"]["content"]
    assert list(content) == ["application/problem+json"]
    assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}


@each_operation
def test_every_body_has_an_example_that_fits_its_schema(operation: Operation) -> None:
    for where, content in operation.bodies():
        assert "example" in content, where
        validator({**content["schema"], "components": openapi()["components"]}).validate(content["example"])


def validator(schema: dict[str, object]) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def test_no_schema_offers_a_choice() -> None:
    """No anyOf with null, no oneOf, no discriminator: generators make unions of them, or give up."""
    chosen = [
        place for place, schema in schemas() if schema.keys() & {"anyOf", "oneOf", "allOf", "discriminator", "nullable"}
    ]
    assert chosen == []


def test_nothing_is_null() -> None:
    assert [place for place, schema in schemas() if "null" in str(schema.get("type"))] == []


def test_no_schema_has_a_default() -> None:
    assert [place for place, schema in schemas() if "default" in schema] == []


def test_every_number_has_a_format() -> None:
    formats = {"integer": {"int32", "int64"}, "number": {"double"}}
    odd = [
        place
        for place, schema in schemas()
        if schema.get("type") in formats and schema.get("format") not in formats[schema["type"]]
    ]
    assert odd == []


def test_objects_and_enums_have_names() -> None:
    """Free maps, whose keys are the user's, are the only objects that stand where they are used."""
    named = set(openapi()["components"]["schemas"])
    inline = [
        place for place, schema in schemas() if place not in named and ("properties" in schema or "enum" in schema)
    ]
    maps = {
        place.rsplit(".", 1)[1] for place, schema in schemas() if place not in named and schema.get("type") == "object"
    }
    assert (inline, maps) == ([], FREE_MAPS)


def test_free_json_says_nothing_of_itself() -> None:
    """`{}`, or with a description only: any value, and no generator asks for an object."""
    for name in ("payload", "result", "checkpoint", "details"):
        found = [schema for place, schema in schemas() if place.endswith(f".{name}")]
        assert found
        assert all(schema.keys() <= {"description"} for schema in found), name


def test_what_is_sent_is_strict_and_what_is_told_may_grow() -> None:
    strict = {
        name
        for name, schema in openapi()["components"]["schemas"].items()
        if schema.get("additionalProperties") is False
    }
    sent = {name for name in request_components() if "properties" in openapi()["components"]["schemas"][name]}
    assert strict == sent


def test_answers_have_no_enums() -> None:
    """An answer that may grow is a string with its values described: an old client must not choke on a new state."""
    params = request_components() | {
        parameter["schema"]["$ref"].rsplit("/", 1)[1]
        for operation in operations()
        for parameter in operation.spec.get("parameters", [])
        if "$ref" in parameter["schema"]
    }
    assert {name for name, schema in openapi()["components"]["schemas"].items() if "enum" in schema} <= params


def test_fastapis_own_errors_are_not_in_it() -> None:
    assert "ValidationError" not in json.dumps(openapi())


def test_every_component_is_used() -> None:
    text = json.dumps(openapi())
    assert [name for name in openapi()["components"]["schemas"] if f'"#/components/schemas/{name}"' not in text] == []
