"""PUT, PATCH and GET /queues/{name}: what was set is told, and nothing else."""

import json

import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase

EVERYTHING: Json = {
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
BAD: list[tuple[Json, str, str]] = [
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


def told(queue: Json) -> Json:
    """The configuration only."""
    return {name: value for name, value in queue.items() if name not in ("name", "created_at")}


def test_what_was_set_is_told(api: Api) -> None:
    queue = api.configure(**EVERYTHING)
    assert told(queue) == {**EVERYTHING, "lanes": 1, "paused": False}
    assert queue["name"] == api.queue
    assert api.get(f"/queues/{api.queue}") == queue
    assert [found for page in api.pages("/queues", limit=100) for found in page if found["name"] == api.queue] == [
        queue
    ]


def test_a_queue_that_nobody_configured_has_its_defaults(api: Api) -> None:
    api.enqueue()
    assert told(api.get(f"/queues/{api.queue}")) == {"lanes": 1, "paused": False}


def test_an_unknown_queue_is_not_found(api: Api) -> None:
    assert api.get(f"/queues/{api.queue}", status=404)["code"] == "not_found"
    assert api.patch(f"/queues/{api.queue}", {"fair": True}, status=404)["code"] == "not_found"
    assert api.get(f"/queues/{api.queue}", status=404)["code"] == "not_found"


def test_a_put_makes_the_queue_and_replaces_its_configuration(api: Api) -> None:
    first = api.configure(**EVERYTHING)
    second = api.configure(max_waiting=5)
    assert told(second) == {"max_waiting": 5, "lanes": 1, "paused": False}
    assert second["created_at"] == first["created_at"]
    assert told(api.configure()) == {"lanes": 1, "paused": False}


def test_the_same_put_again_gives_the_same_answer(api: Api) -> None:
    assert api.configure(**EVERYTHING) == api.configure(**EVERYTHING)


def test_a_put_makes_a_queue_where_enqueues_make_none(api: Api, dsn: str) -> None:
    with threaded_broker(QUICK.model_copy(update={"create_queues": False}), dsn) as broker:
        strict = Api(broker.http, api.queue)
        strict.configure(max_waiting=5)
        assert strict.enqueue()["queue"] == api.queue


def test_a_put_makes_no_more_queues_than_allowed(api: Api, dsn: str, db: TestDatabase) -> None:
    api.configure()
    most = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL")
    with threaded_broker(QUICK.model_copy(update={"max_queues": most}), dsn) as broker:
        answer = broker.http.put(f"/queues/{api.queue}-a", json={})
        assert (answer.status_code, answer.json()["code"], "Retry-After" in answer.headers) == (
            429,
            "queue_limit",
            True,
        )
        assert Api(broker.http, api.queue).configure(fair=True)["fair"]
    api.get(f"/queues/{api.queue}-a", status=404)


def test_a_patch_changes_only_what_is_given(api: Api) -> None:
    api.configure(**EVERYTHING)
    changes = {"max_waiting": 0, "fair": False, "health": {"max_depth": 7}, "default_retry": {"jitter": 0.0}}
    changed = api.patch(f"/queues/{api.queue}", changes)
    wanted = {
        **EVERYTHING,
        "max_waiting": 0,
        "fair": False,
        "health": {**EVERYTHING["health"], "max_depth": 7},
        "default_retry": {**EVERYTHING["default_retry"], "jitter": 0.0},
    }
    assert told(changed) == {**wanted, "lanes": 1, "paused": False}
    assert api.get(f"/queues/{api.queue}") == changed


def test_a_patch_sets_what_was_not_set(api: Api) -> None:
    api.configure(max_waiting=5)
    assert told(api.patch(f"/queues/{api.queue}", {"rate": {"limit": 1, "per_seconds": 2}})) == {
        "max_waiting": 5,
        "rate": {"limit": 1, "per_seconds": 2},
        "lanes": 1,
        "paused": False,
    }


def test_an_empty_patch_changes_nothing(api: Api) -> None:
    queue = api.configure(**EVERYTHING)
    assert api.patch(f"/queues/{api.queue}", {}) == queue


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(("config", "pointer", "code"), BAD, ids=lambda value: str(value)[:50])
def test_a_bad_configuration_is_pointed_at_and_changes_nothing(
    api: Api, method: str, config: Json, pointer: str, code: str
) -> None:
    before = api.configure(max_waiting=5)
    response = api.http.request(method, f"/queues/{api.queue}", content=json.dumps(config))
    assert response.status_code == 422, response.text
    assert [(fault["pointer"], fault["code"]) for fault in response.json()["errors"]] == [(pointer, code)]
    assert api.get(f"/queues/{api.queue}") == before


@pytest.mark.parametrize(
    "config", [{"max_runing": 5}, {"max_running": 5, "lanes": 2}, {"default_lease_seconds": 0}], ids=str
)
def test_a_refused_put_makes_no_queue(api: Api, config: Json) -> None:
    api.configure(**config, status=422)
    api.get(f"/queues/{api.queue}", status=404)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_a_bad_name_is_refused(api: Api, method: str) -> None:
    for name in ("a%20b", "x" * 121, "%C3%BC", "a%0A"):
        response = api.http.request(method, f"/queues/{name}", json={} if method in ("PUT", "PATCH") else None)
        assert response.status_code == 422, response.text
        assert response.json()["errors"][0]["pointer"] == "/path/name"


def test_a_lease_lies_within_what_the_settings_allow(api: Api, dsn: str) -> None:
    api.configure(default_lease_seconds=5)
    settings = QUICK.model_copy(update={"min_lease_seconds": 10, "max_lease_seconds": 100})
    with threaded_broker(settings, dsn) as broker:
        narrow = Api(broker.http, api.queue)
        for seconds in (9, 101):
            refused = narrow.patch(f"/queues/{api.queue}", {"default_lease_seconds": seconds}, status=422)
            assert [fault["pointer"] for fault in refused["errors"]] == ["/default_lease_seconds"]
        assert narrow.patch(f"/queues/{api.queue}", {"fair": True})["default_lease_seconds"] == 5
        assert narrow.configure(default_lease_seconds=100)["default_lease_seconds"] == 100
