"""Valid and invalid requests, generated from the OpenAPI document.

No response is a 5xx, and every response conforms to the document. `make test` sends the same few
requests each time, `make fuzz` many more, with another seed each time.
"""

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)

from tests.api_client import Api, Json
from tests.broker import RunningBroker, broker_process
from tests.contract.document import Schema, openapi, operations
from tests.database import Loop, create_database

pytestmark = pytest.mark.slow

FUZZ = os.environ.get("FUZZ")
FUZZ_SETTINGS = settings(
    max_examples=int(FUZZ or 12),
    derandomize=FUZZ is None,
    deadline=None,
    database=None,
    phases=[Phase.generate, *([Phase.shrink] if FUZZ else [])],
    suppress_health_check=list(HealthCheck),
)


def status_is_listed(_context: CheckContext, response: Response, case: Case[Any]) -> None:
    """Stricter than schemathesis, for which `default` in the document stands for every status."""
    listed = case.operation.definition.raw["responses"].keys()
    if str(response.status_code) not in listed:
        raise AssertionError(
            f"{response.status_code} is not in the document, only {', '.join(listed)}: {response.text[:300]}"
        )


CHECKS = [
    not_a_server_error,
    status_is_listed,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def broker(postgres: str, loop: Loop) -> Iterator[RunningBroker]:
    """A broker with a database of its own and an administrator's key.

    The first key that a generated request creates would lock out all others.
    """
    with broker_process(create_database(postgres, loop, "fuzz"), max_wait_seconds="0", log_level="error") as (
        broker,
        _,
    ):
        created = broker.http.post("/api-keys", json={"name": "fuzz", "scopes": ["manage", "read", "work", "enqueue"]})
        broker.http.headers["Authorization"] = f"Bearer {created.raise_for_status().json()['key']}"
        yield broker


@pytest.fixture
def known_values(broker: RunningBroker, queue: str) -> dict[str, list[str]]:
    """Values by the name of their parameter or member, so that requests reach existing objects."""
    api = Api(broker.http, queue)
    api.put(f"/job-types/{queue}", {})
    api.put(f"/schedules/{queue}", {"cron": "0 0 1 1 *", "job": {"queue": queue, "job_type": "test"}})
    jobs = [api.dead_letter(), api.enqueue()]
    api.complete(api.claim_one())
    leased_jobs = [api.enqueue() and api.claim_one(worker_id=queue, lease_seconds=3600) for _ in range(2)]
    jobs += [*leased_jobs, api.enqueue(), api.enqueue(delay_seconds=3600)]
    return {
        "job_id": [job["id"] for job in jobs],
        "lease_token": [job["lease_token"] for job in leased_jobs],
        "key_id": [api.post("/api-keys", {"name": queue, "scopes": ["read"]}, status=201)["id"]],
        **{name: [queue] for name in ("name", "queue", "worker_id")},
    }


def with_known_values(document: Json, known_values: dict[str, list[str]]) -> Json:
    """The document, in which valid requests use only the known values.

    Invalid requests, and other tests, name objects that do not exist.
    """
    changed = copy.deepcopy(document)
    for name, schema in named_schemas(changed):
        if name in known_values:
            schema.clear()
            schema["enum"] = known_values[name]
    return changed


def named_schemas(document: Json) -> Iterator[tuple[str, Schema]]:
    for methods in document["paths"].values():
        for operation in methods.values():
            yield from ((parameter["name"], parameter["schema"]) for parameter in operation.get("parameters", []))
    for component in ("Settlement", "HeldLease", "LeaseBeat", "Complete", "Fail", "Snooze", "Release"):
        yield from document["components"]["schemas"][component]["properties"].items()


def requests(operation: Any) -> st.SearchStrategy[Case[Any]]:
    modes = [GenerationMode.POSITIVE]
    if operation.body or any(operation.iter_parameters()):
        modes.append(GenerationMode.NEGATIVE)
    return st.one_of([operation.as_strategy(mode) for mode in modes])


@pytest.mark.parametrize("name", [operation.name for operation in operations()])
def test_responses_conform_to_the_openapi_document(
    broker: RunningBroker, known_values: dict[str, list[str]], name: str
) -> None:
    schema = schemathesis.openapi.from_dict(with_known_values(openapi(), known_values))

    @FUZZ_SETTINGS
    @given(requests(schema.find_operation_by_id(name)))
    def conforms(case: Case[Any]) -> None:
        case.call_and_validate(base_url=broker.base, headers=dict(broker.http.headers), checks=CHECKS)

    conforms()
