"""Authorization: every operation of the OpenAPI document, called with every kind of key.

The tests iterate over the document, so that a new operation is covered, too.
"""

import json
from typing import NamedTuple

import httpx
import pytest
from starlette.routing import Route

from tests.api.api_keys.conftest import ALL_SCOPES, Callers, Key
from tests.api_client import Api, Json
from tests.broker import RunningBroker
from tests.contract.document import Operation, app, operations
from tests.contract.example_setup import SETUPS, example, with_real_ids
from tests.contract.test_examples import shape
from tests.contract.test_openapi import routes
from tests.contract.test_unexpected_input import example_path
from tests.database import TestDatabase
from tests.table import every_case, table

PUBLIC = {"/livez", "/readyz", "/limits", "/docs", "/docs/start.js", "/docs/{asset}", "/openapi.json"}

PUBLIC_OPERATIONS = [operation for operation in operations() if operation.path in PUBLIC]
PROTECTED_OPERATIONS = [operation for operation in operations() if operation.path not in PUBLIC]

# The queues of the examples. `queue-*` matches the queue of the test itself.
EXAMPLE_QUEUES = ("email", "reports", "default", "queue-*")

# Operations that require access to all queues.
ALL_QUEUES_ONLY = {
    *("create_api_key", "list_api_keys", "get_api_key", "revoke_api_key"),
    *("list_workers", "drain_worker", "stop_worker", "resume_worker"),
    *("put_job_type", "delete_job_type", "get_metrics"),
}

# Operations whose responses concern no queue.
WITHOUT_QUEUE = {"list_job_types", "get_job_type", "preview_schedule"}

# Operations that return an empty result to a key that has access to other queues only.
FILTERED = {
    *("list_queues", "list_schedules", "get_stats", "heartbeat_leases", "settle_jobs"),
    *("list_dead_letters", "group_dead_letters", "purge_dead_letters"),
}

# Only workers with a directive: brokers record on their own which workers they have seen.
WORKER_DIRECTIVES = "(SELECT id, directive FROM workers WHERE directive <> 'run')"
TABLES = (
    *("jobs", "finished_jobs", "dead_letters", "schedules", "queues", "job_types", "deduplication_keys", "api_keys"),
    WORKER_DIRECTIVES,
)


class InvalidCredentials(NamedTuple):
    """Values of `Authorization` that identify no caller."""

    garbage: str
    other_scheme: str
    wrong_secret: str
    longer_secret: str
    revoked: str
    expired: str


@pytest.fixture(scope="module")
def keys() -> dict[str, Key]:
    """Keys by name, each created by the first test that needs it."""
    return {}


@pytest.fixture
def key_cache(keys: dict[str, Key], callers: Callers) -> "KeyCache":
    return KeyCache(keys, callers)


class KeyCache:
    def __init__(self, created: dict[str, Key], callers: Callers) -> None:
        self._keys = created
        self._callers = callers

    def with_scope(self, scope: str, *queues: str) -> Api:
        scopes = [f"{scope}:{queue}" for queue in queues] or [scope]
        return self._callers.with_key(self.key(" ".join(scopes), *scopes).text)

    def key(self, name: str, *scopes: str) -> Key:
        if name not in self._keys:
            self._keys[name] = self._callers.key(*scopes)
        return self._keys[name]


@pytest.fixture(scope="module")
def cached_credentials() -> list[InvalidCredentials]:
    return []


@pytest.fixture
def invalid_credentials(
    cached_credentials: list[InvalidCredentials], key_cache: KeyCache, callers: Callers, key_db: TestDatabase
) -> InvalidCredentials:
    """Created once, by the first test that needs them."""
    if not cached_credentials:
        cached_credentials.append(make_invalid_credentials(key_cache, callers, key_db))
    return cached_credentials[0]


def make_invalid_credentials(key_cache: KeyCache, callers: Callers, key_db: TestDatabase) -> InvalidCredentials:
    live, revoked, expired = key_cache.key("live"), key_cache.key("revoked"), key_cache.key("expired")
    key_db.execute("UPDATE api_keys SET expires_at = created_at WHERE id = $1", expired.id)
    callers.revoke(revoked)  # the broker has reloaded all keys when this returns
    wrong = live.text[:-1] + ("0" if live.text[-1] != "0" else "1")
    texts = ["garbage", wrong, f"{live.text}0", revoked.text, expired.text]
    garbage, wrong, longer, *ended = [f"Bearer {text}" for text in texts]
    return InvalidCredentials(garbage, f"Basic {live.text}", wrong, longer, *ended)


class Call:
    """The example request of an operation, with all the objects that it needs."""

    def __init__(self, operation: Operation, admin: Api) -> None:
        self.operation = operation
        request = with_real_ids(example(operation.name)["request"], SETUPS[operation.name](admin))
        self.path: str = request["path"]
        self.body: Json | None = request.get("body")
        self.headers: dict[str, str] = request.get("headers", {})

    def send(self, http: httpx.Client, **headers: str) -> httpx.Response:
        return http.request(self.operation.method, self.path, json=self.body, headers={**self.headers, **headers})


def scopes_of(operation: Operation) -> list[str]:
    """The scopes of an operation. A key needs one of them."""
    return [scope for way in operation.spec["security"] for scope in way.get("api_key", [])]


def contents(db: TestDatabase) -> list[str]:
    """All rows that a call could change."""
    rows = " UNION ALL ".join(f"SELECT to_jsonb(t) - 'last_used_at' AS row FROM {table} AS t" for table in TABLES)
    return sorted(row["row"] for row in db.rows(rows))


def probe_status(operation: Operation, http: httpx.Client) -> int:
    """The status of a call without a body: authorization fails before the request is validated."""
    return http.request(operation.method, example_path(operation)).status_code


def assert_rejected(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers.get("www-authenticate") == ('Bearer realm="longshore"' if status == 401 else None)


@pytest.mark.parametrize("operation", PROTECTED_OPERATIONS, ids=lambda operation: operation.name)
def test_operation_authorizes_only_keys_with_its_scope_and_queue(
    operation: Operation,
    callers: Callers,
    key_cache: KeyCache,
    invalid_credentials: InvalidCredentials,
    key_db: TestDatabase,
) -> None:
    """The failure lists every kind of key that gets the wrong response."""
    call = Call(operation, callers.admin)
    other_scopes = {scope: key_cache.with_scope(scope) for scope in set(ALL_SCOPES) - set(scopes_of(operation))}
    other_queues = {scope: key_cache.with_scope(scope, "elsewhere") for scope in scopes_of(operation)}
    before = contents(key_db)
    with every_case() as case:
        for kind, authorization in {"no key": None, **invalid_credentials._asdict()}.items():
            with case(kind):
                assert_unauthenticated(call, callers.with_key(None).http, authorization)
        for scope, api in other_scopes.items():
            with case(f"{scope} for all queues"):
                assert_rejected(call.send(api.http), 403, "forbidden")
        for scope, api in other_queues.items():
            with case(f"{scope} for another queue"):
                assert_reveals_nothing(operation.name, call.send(api.http))
        with case("rejected calls change nothing"):
            assert contents(key_db) == before
        for scope in scopes_of(operation):
            with case(f"{scope} for the queue"):
                key_db.empty()
                assert_is_sufficient(operation, scope, key_cache, callers.admin)


def assert_unauthenticated(call: Call, http: httpx.Client, authorization: str | None) -> None:
    if authorization is None:
        assert_rejected(call.send(http), 401, "unauthenticated")
        return
    response = call.send(http, Authorization=authorization)
    assert_rejected(response, 401, "unauthenticated")
    assert authorization.split()[1] not in response.text


def assert_reveals_nothing(name: str, response: httpx.Response) -> None:
    if response.status_code == 200:
        assert name in WITHOUT_QUEUE | FILTERED
    else:
        assert_rejected(response, response.status_code, {403: "forbidden", 404: "not_found"}[response.status_code])
    assert name in WITHOUT_QUEUE or [queue for queue in EXAMPLE_QUEUES if f'"{queue}"' in response.text] == []


def assert_is_sufficient(operation: Operation, scope: str, key_cache: KeyCache, admin: Api) -> None:
    """A new example request succeeds with the scope for its queue, and returns the documented shape."""
    queues = [] if operation.name in ALL_QUEUES_ONLY else EXAMPLE_QUEUES
    response = Call(operation, admin).send(key_cache.with_scope(scope, *queues).http)
    expected = example(operation.name)["answer"]
    assert response.status_code == expected["status"], response.text
    if "json" in response.headers["content-type"] and not isinstance(expected["body"].get("items"), list):
        assert shape(response.json()) == shape(expected["body"])


def test_pattern_that_matches_all_queues_does_not_allow_global_operations(key_cache: KeyCache) -> None:
    """Objects that belong to no queue require access to all queues."""
    forbidden = {
        operation.name
        for operation in PROTECTED_OPERATIONS
        if probe_status(operation, key_cache.with_scope(scopes_of(operation)[0], "**").http) == 403
    }
    assert forbidden == ALL_QUEUES_ONLY


@table("operation", PUBLIC_OPERATIONS)
def test_public_operation_needs_no_key(operation: Operation, callers: Callers) -> None:
    assert operation.spec["security"] == []
    assert callers.with_key(None).http.get(operation.path).status_code == 200
    assert callers.with_key("garbage").http.get(operation.path).status_code == 200


def test_every_route_without_scopes_is_listed_as_public() -> None:
    """The scopes of a route are a required argument; a public route must be listed here, too."""
    without_scopes = {route.path for route in routes() if not (route.openapi_extra or {}).get("security")}
    others = {route.path for route in app().routes if isinstance(route, Route) and route not in routes()}
    assert without_scopes | others == PUBLIC


def test_every_non_public_route_rejects_callers_without_a_key(
    keyed_broker: tuple[RunningBroker, str], callers: Callers
) -> None:
    """Checked on the routes, whatever the OpenAPI document says."""
    all_operations = [Operation(method, route.path, {}) for route in routes() for method in route.methods or ()]
    http = callers.with_key(None).http
    accepted = {route.path for route in all_operations if probe_status(route, http) != 401}
    assert accepted == PUBLIC - {"/openapi.json"}
    assert http.get("/openapi.json").status_code == 200


@table("operation", PROTECTED_OPERATIONS)
def test_openapi_document_names_the_scopes_of_every_protected_operation(operation: Operation) -> None:
    assert scopes_of(operation)
    assert {name for way in operation.spec["security"] for name in way} == {"api_key"}
    assert {"401", "403", "429"} <= operation.spec["responses"].keys() or operation.name == "get_metrics"


def test_responses_have_no_cors_headers(admin: Api) -> None:
    origin = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    responses = [admin.http.options("/jobs", headers=origin), admin.http.get("/jobs", headers=origin)]
    assert [name for response in responses for name in response.headers if name.startswith("access-control-")] == []


def test_all_callers_without_the_right_secret_get_the_same_response(
    callers: Callers, invalid_credentials: InvalidCredentials
) -> None:
    """Only a caller with the secret of a revoked or expired key learns why it is rejected."""
    anonymous = callers.with_key(None).http
    guesses = [
        text[:-1] + ("0" if text[-1] != "0" else "1")
        for text in (invalid_credentials.revoked, invalid_credentials.expired)
    ]
    authorizations = [*invalid_credentials[:4], *guesses]
    responses = [
        anonymous.get("/jobs", headers={"Authorization": authorization}).json() for authorization in authorizations
    ]
    assert len({json.dumps({**response, "instance": ""}) for response in responses}) == 1
