"""Who may call what: every operation of the OpenAPI document, tried with every kind of key. The document is what is walked, so that a
new operation is tried too."""

import json
from typing import NamedTuple

import httpx
import pytest
from starlette.routing import Route

from tests.api import Api, Json
from tests.api_keys.conftest import ALL_SCOPES, Callers, Key
from tests.broker import RunningBroker
from tests.contract.arrangements import ARRANGED, example, with_real_names
from tests.contract.document import Operation, app, operations
from tests.contract.test_examples import shape
from tests.contract.test_nothing_more import path_of
from tests.contract.test_openapi import routes
from tests.database import TestDatabase

PUBLIC = {"/livez", "/readyz", "/limits", "/docs", "/docs/start.js", "/docs/{asset}", "/openapi.json"}

OPEN = [found for found in operations() if found.path in PUBLIC]
GUARDED = [found for found in operations() if found.path not in PUBLIC]

# The queues that the examples are about. `queue-*` is that of the test itself.
OWN = ("email", "reports", "default", "queue-*")

# Only for keys that reach every queue.
EVERYWHERE = {
    *("create_api_key", "list_api_keys", "get_api_key", "revoke_api_key"),
    *("list_workers", "drain_worker", "stop_worker", "resume_worker"),
    *("put_job_type", "delete_job_type", "get_metrics"),
}

# What these answer concerns no queue.
OF_NO_QUEUE = {"list_job_types", "get_job_type", "preview_schedule"}

# These answer who reaches other queues only: with what there is for them, which is nothing.
TELL_THEIR_OWN = {
    *("list_queues", "list_schedules", "get_stats", "heartbeat_leases", "settle_jobs"),
    *("list_dead_letters", "group_dead_letters", "purge_dead_letters"),
}

DIRECTED = (
    "(SELECT id, directive FROM workers WHERE directive <> 'run')"  # brokers note for themselves which workers they see
)
TABLES = ("jobs", "finished_jobs", "dead_letters", "schedules", "queues", "job_types", "keys", "api_keys", DIRECTED)


class Strangers(NamedTuple):
    """What `Authorization` may say of somebody whom nobody knows."""

    garbage: str
    other_scheme: str
    wrong_secret: str
    longer_secret: str
    revoked: str
    expired: str


@pytest.fixture(scope="module")
def keys() -> dict[str, Key]:
    """Made once, by the first test that asks for one."""
    return {}


@pytest.fixture
def key(keys: dict[str, Key], callers: Callers) -> "Keys":
    return Keys(keys, callers)


class Keys:
    def __init__(self, made: dict[str, Key], callers: Callers) -> None:
        self._made = made
        self._callers = callers

    def with_scope(self, scope: str, *queues: str) -> Api:
        scopes = [f"{scope}:{queue}" for queue in queues] or [scope]
        return self._callers.holding(self.of(" ".join(scopes), *scopes).text)

    def of(self, name: str, *scopes: str) -> Key:
        if name not in self._made:
            self._made[name] = self._callers.key(*scopes)
        return self._made[name]


@pytest.fixture(scope="module")
def known() -> list[Strangers]:
    return []


@pytest.fixture
def strangers(known: list[Strangers], key: Keys, callers: Callers, stored: TestDatabase) -> Strangers:
    """Made once, too."""
    if not known:
        known.append(made_strangers(key, callers, stored))
    return known[0]


def made_strangers(key: Keys, callers: Callers, stored: TestDatabase) -> Strangers:
    live, revoked, expired = key.of("live"), key.of("revoked"), key.of("expired")
    stored.execute("UPDATE api_keys SET expires_at = created_at WHERE id = $1", expired.id)
    callers.revoke(revoked)  # the broker has read all keys again when this is answered
    wrong = live.text[:-1] + ("0" if live.text[-1] != "0" else "1")
    texts = ["garbage", wrong, f"{live.text}0", revoked.text, expired.text]
    garbage, wrong, longer, *ended = [f"Bearer {text}" for text in texts]
    return Strangers(garbage, f"Basic {live.text}", wrong, longer, *ended)


class Call:
    """The example of an operation, with everything there that it needs."""

    def __init__(self, operation: Operation, admin: Api) -> None:
        self.operation = operation
        sent = with_real_names(example(operation.name)["request"], ARRANGED[operation.name](admin))
        self.path: str = sent["path"]
        self.body: Json | None = sent.get("body")
        self.headers: dict[str, str] = sent.get("headers", {})

    def by(self, http: httpx.Client, **headers: str) -> httpx.Response:
        return http.request(self.operation.method, self.path, json=self.body, headers={**self.headers, **headers})


def scopes_of(operation: Operation) -> list[str]:
    """Of which one is enough."""
    return [scope for way in operation.spec["security"] for scope in way.get("api_key", [])]


def contents(db: TestDatabase) -> list[str]:
    """All that a call could have changed."""
    rows = " UNION ALL ".join(f"SELECT to_jsonb(t) - 'last_used_at' AS row FROM {table} AS t" for table in TABLES)
    return sorted(row["row"] for row in db.rows(rows))


def knock(operation: Operation, http: httpx.Client) -> int:
    """Who is not let in hears that before anything is looked at."""
    return http.request(operation.method, path_of(operation)).status_code


def refused(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers.get("www-authenticate") == ('Bearer realm="longshore"' if status == 401 else None)


@pytest.mark.parametrize("operation", GUARDED, ids=lambda found: found.name)
def test_who_has_no_right_to_it_gets_nothing_and_changes_nothing(
    operation: Operation, callers: Callers, key: Keys, strangers: Strangers, stored: TestDatabase
) -> None:
    call = Call(operation, callers.admin)
    otherwise = [key.with_scope(scope) for scope in set(ALL_SCOPES) - set(scopes_of(operation))]
    elsewhere = [key.with_scope(scope, "elsewhere") for scope in scopes_of(operation)]
    before = contents(stored)
    refuse_strangers(call, callers.holding(None).http, strangers)
    for api in otherwise:
        refused(call.by(api.http), 403, "forbidden")
    for api in elsewhere:
        tell_nothing(operation.name, call.by(api.http))
    assert contents(stored) == before


def refuse_strangers(call: Call, http: httpx.Client, strangers: Strangers) -> None:
    refused(call.by(http), 401, "unauthenticated")
    for authorization in strangers:
        response = call.by(http, Authorization=authorization)
        refused(response, 401, "unauthenticated")
        assert authorization.split()[1] not in response.text


def tell_nothing(name: str, response: httpx.Response) -> None:
    if response.status_code == 200:
        assert name in OF_NO_QUEUE | TELL_THEIR_OWN
    else:
        refused(response, response.status_code, {403: "forbidden", 404: "not_found"}[response.status_code])
    assert name in OF_NO_QUEUE or [queue for queue in OWN if f'"{queue}"' in response.text] == []


@pytest.mark.parametrize(
    ("operation", "scope"),
    [(found, scope) for found in GUARDED for scope in scopes_of(found)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_scope_for_its_queue_is_enough(operation: Operation, scope: str, key: Keys, admin: Api) -> None:
    call = Call(operation, admin)
    response = call.by(key.with_scope(scope, *([] if operation.name in EVERYWHERE else OWN)).http)
    told = example(operation.name)["answer"]
    assert response.status_code == told["status"], response.text
    if "json" in response.headers["content-type"] and not isinstance(told["body"].get("items"), list):
        assert shape(response.json()) == shape(told["body"])


def test_a_key_for_all_the_queues_there_are_is_not_one_for_every_queue(key: Keys) -> None:
    """What belongs to no queue is for administrators of everything."""
    shut = {found.name for found in GUARDED if knock(found, key.with_scope(scopes_of(found)[0], "**").http) == 403}
    assert shut == EVERYWHERE


@pytest.mark.parametrize("operation", OPEN, ids=lambda found: found.name)
def test_what_is_public_is_told_to_everybody(operation: Operation, callers: Callers) -> None:
    assert operation.spec["security"] == []
    assert callers.holding(None).http.get(operation.path).status_code == 200
    assert callers.holding("garbage").http.get(operation.path).status_code == 200


def test_a_route_that_names_no_scope_is_one_of_the_public_ones() -> None:
    """Whom a route lets in is an argument that cannot be left out; who writes `OPEN` has to say so here too."""
    silent = {route.path for route in routes() if not (route.openapi_extra or {}).get("security")}
    others = {route.path for route in app().routes if isinstance(route, Route) and route not in routes()}
    assert silent | others == PUBLIC


def test_every_other_route_is_shut_to_who_has_no_key(guarded: tuple[RunningBroker, str], callers: Callers) -> None:
    """Whatever the document says of it."""
    every = [Operation(method, route.path, {}) for route in routes() for method in route.methods or ()]
    http = callers.holding(None).http
    let_in = {route.path for route in every if knock(route, http) != 401}
    assert let_in == PUBLIC - {"/openapi.json"}
    assert http.get("/openapi.json").status_code == 200


def test_the_document_names_the_scopes_of_every_guarded_operation() -> None:
    scheme = {"api_key"}
    for operation in GUARDED:
        assert scopes_of(operation), operation.name
        assert {name for way in operation.spec["security"] for name in way} == scheme
        assert {"401", "403", "429"} <= operation.spec["responses"].keys() or operation.name == "get_metrics", (
            operation.name
        )


def test_no_page_of_another_origin_may_read_what_is_answered(admin: Api) -> None:
    origin = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    answers = [admin.http.options("/jobs", headers=origin), admin.http.get("/jobs", headers=origin)]
    assert [name for answer in answers for name in answer.headers if name.startswith("access-control-")] == []


def test_refused_key_without_the_right_secret_learns_nothing(callers: Callers, strangers: Strangers) -> None:
    """All responses are equal. Only a caller with the secret of a revoked or expired key learns why it is refused."""
    nobody = callers.holding(None).http
    guesses = [text[:-1] + ("0" if text[-1] != "0" else "1") for text in (strangers.revoked, strangers.expired)]
    authorizations = [*strangers[:4], *guesses]
    answers = [nobody.get("/jobs", headers={"Authorization": authorization}).json() for authorization in authorizations]
    assert len({json.dumps({**answer, "instance": ""}) for answer in answers}) == 1
