"""PUT, PATCH and GET /queues/{name}: responses contain the members that were set, and no others."""

import json

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.table import table

FULL_CONFIG: Json = {
    "max_running": 10,
    "max_running_per_group": 1,
    "rate": {"limit": 100, "per_seconds": 60},
    "max_waiting": 1000,
    "fair": True,
    "default_priority": -5,
    "default_lease_seconds": 120,
    "default_retry": {"base_seconds": 0.5, "factor": 3.0, "max_seconds": 60.0, "jitter": 0.25},
    "default_max_attempts": 7,
    "retention": {"finished_seconds": 3600, "mode": "detach"},
    "health": {"max_depth": 100, "max_age_seconds": 60, "max_dead_per_hour": 0},
}
INVALID_CONFIGS: list[tuple[Json, str, str]] = [
    ({"max_runing": 5}, "/max_runing", "unknown_field"),
    ({"max_running": 0}, "/max_running", "invalid"),
    ({"max_running": None}, "/max_running", "invalid"),
    ({"max_running": 2.5}, "/max_running", "invalid"),
    ({"max_running": 5, "lanes": 2}, "/max_running", "invalid"),
    ({"rate": {"limit": 5, "per_seconds": 1}, "lanes": 2}, "/rate", "invalid"),
    ({"rate": {"limit": 5}}, "/rate/per_seconds", "missing"),
    ({"rate": {"limit": 5, "per_seconds": 1, "burst": 9}}, "/rate/burst", "unknown_field"),
    ({"max_running_per_group": 0}, "/max_running_per_group", "invalid"),
    ({"max_waiting": -1}, "/max_waiting", "invalid"),
    ({"max_waiting": 2**31}, "/max_waiting", "invalid"),
    ({"fair": "yes"}, "/fair", "invalid"),
    ({"lanes": 0}, "/lanes", "invalid"),
    ({"lanes": 257}, "/lanes", "invalid"),
    ({"paused": 1}, "/paused", "invalid"),
    ({"default_priority": 32768}, "/default_priority", "invalid"),
    ({"default_lease_seconds": 0}, "/default_lease_seconds", "invalid"),
    ({"default_retry": {"factor": 0.5}}, "/default_retry/factor", "invalid"),
    ({"default_retry": {"jitter": float("nan")}}, "/default_retry/jitter", "unsafe_json"),
    ({"default_max_attempts": 1001}, "/default_max_attempts", "invalid"),
    ({"retention": {"mode": "keep"}}, "/retention/mode", "invalid"),
    ({"retention": {"finished_seconds": 0}}, "/retention/finished_seconds", "invalid"),
    ({"health": {"max_depth": 10**30}}, "/health/max_depth", "invalid"),
]


def config_of(queue: Json) -> Json:
    """The configuration of a queue, without its name and creation time."""
    return {name: value for name, value in queue.items() if name not in ("name", "created_at")}


def test_put_get_and_list_return_the_configuration(api: Api) -> None:
    queue = api.configure(**FULL_CONFIG)
    assert config_of(queue) == {**FULL_CONFIG, "lanes": 1, "paused": False}
    assert queue["name"] == api.queue
    assert api.get(f"/queues/{api.queue}") == queue
    assert [listed for page in api.pages("/queues", limit=100) for listed in page if listed["name"] == api.queue] == [
        queue
    ]


def test_unconfigured_queue_has_defaults(api: Api) -> None:
    api.enqueue()
    assert config_of(api.get(f"/queues/{api.queue}")) == {"lanes": 1, "paused": False}


def test_get_and_patch_of_an_unknown_queue_are_not_found(api: Api) -> None:
    assert api.get(f"/queues/{api.queue}", status=404)["code"] == "not_found"
    assert api.patch(f"/queues/{api.queue}", {"fair": True}, status=404)["code"] == "not_found"
    assert api.get(f"/queues/{api.queue}", status=404)["code"] == "not_found"


def test_put_creates_the_queue_and_replaces_its_configuration(api: Api) -> None:
    first = api.configure(**FULL_CONFIG)
    second = api.configure(max_waiting=5)
    assert config_of(second) == {"max_waiting": 5, "lanes": 1, "paused": False}
    assert second["created_at"] == first["created_at"]
    assert config_of(api.configure()) == {"lanes": 1, "paused": False}


def test_repeated_put_returns_the_same_response(api: Api) -> None:
    assert api.configure(**FULL_CONFIG) == api.configure(**FULL_CONFIG)


def test_put_creates_a_queue_even_if_enqueues_may_not(no_creation_api: Api) -> None:
    no_creation_api.configure(max_waiting=5)
    assert no_creation_api.enqueue()["queue"] == no_creation_api.queue


def test_put_creates_no_queue_above_max_queues(api: Api, dsn: str, db: TestDatabase) -> None:
    api.configure()
    limit = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL")
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_queues": limit}), dsn) as broker:
        response = broker.http.put(f"/queues/{api.queue}-a", json={})
        assert (response.status_code, response.json()["code"], "Retry-After" in response.headers) == (
            429,
            "queue_limit",
            True,
        )
        assert Api(broker.http, api.queue).configure(fair=True)["fair"]
    api.get(f"/queues/{api.queue}-a", status=404)


def test_patch_changes_only_the_sent_members(api: Api) -> None:
    api.configure(**FULL_CONFIG)
    changes = {"max_waiting": 0, "fair": False, "health": {"max_depth": 7}, "default_retry": {"jitter": 0.0}}
    changed = api.patch(f"/queues/{api.queue}", changes)
    expected = {
        **FULL_CONFIG,
        "max_waiting": 0,
        "fair": False,
        "health": {**FULL_CONFIG["health"], "max_depth": 7},
        "default_retry": {**FULL_CONFIG["default_retry"], "jitter": 0.0},
    }
    assert config_of(changed) == {**expected, "lanes": 1, "paused": False}
    assert api.get(f"/queues/{api.queue}") == changed


def test_patch_sets_an_unset_member(api: Api) -> None:
    api.configure(max_waiting=5)
    assert config_of(api.patch(f"/queues/{api.queue}", {"rate": {"limit": 1, "per_seconds": 2}})) == {
        "max_waiting": 5,
        "rate": {"limit": 1, "per_seconds": 2},
        "lanes": 1,
        "paused": False,
    }


def test_empty_patch_changes_nothing(api: Api) -> None:
    queue = api.configure(**FULL_CONFIG)
    assert api.patch(f"/queues/{api.queue}", {}) == queue


@table("method", ["PUT", "PATCH"])
@table(("config", "pointer", "code"), INVALID_CONFIGS)
def test_invalid_configuration_is_rejected_with_a_pointer_and_changes_nothing(
    api: Api, method: str, config: Json, pointer: str, code: str
) -> None:
    before = api.configure(max_waiting=5)
    response = api.http.request(method, f"/queues/{api.queue}", content=json.dumps(config))
    assert response.status_code == 422, response.text
    assert [(fault["pointer"], fault["code"]) for fault in response.json()["errors"]] == [(pointer, code)]
    assert api.get(f"/queues/{api.queue}") == before


@table("config", [{"max_runing": 5}, {"max_running": 5, "lanes": 2}, {"default_lease_seconds": 0}])
def test_rejected_put_creates_no_queue(api: Api, config: Json) -> None:
    api.configure(**config, status=422)
    api.get(f"/queues/{api.queue}", status=404)


@table("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_invalid_queue_name_is_rejected(api: Api, method: str) -> None:
    for name in ("a%20b", "x" * 121, "%C3%BC", "a%0A"):
        response = api.http.request(method, f"/queues/{name}", json={} if method in ("PUT", "PATCH") else None)
        assert response.status_code == 422, response.text
        assert response.json()["errors"][0]["pointer"] == "/path/name"


def test_default_lease_must_be_within_the_bounds_of_the_settings(api: Api, dsn: str) -> None:
    api.configure(default_lease_seconds=5)
    settings = TEST_SETTINGS.model_copy(update={"min_lease_seconds": 10, "max_lease_seconds": 100})
    with threaded_broker(settings, dsn) as broker:
        bounded = Api(broker.http, api.queue)
        for seconds in (9, 101):
            problem = bounded.patch(f"/queues/{api.queue}", {"default_lease_seconds": seconds}, status=422)
            assert [fault["pointer"] for fault in problem["errors"]] == ["/default_lease_seconds"]
        assert bounded.patch(f"/queues/{api.queue}", {"fair": True})["default_lease_seconds"] == 5
        assert bounded.configure(default_lease_seconds=100)["default_lease_seconds"] == 100
