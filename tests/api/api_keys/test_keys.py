"""The life cycle of a key: created, used, rotated, expired, revoked."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.api_keys.conftest import Callers, Key
from tests.api_client import Api, Json, parse_time
from tests.broker import RunningBroker
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table


def test_secret_of_a_key_is_returned_only_on_creation(callers: Callers) -> None:
    response = callers.admin.http.post("/api-keys", json={"name": "shown-once", "scopes": ["read"]})
    response_json = response.json()
    assert response.headers["location"] == f"/api-keys/{response_json['id']}"
    assert response.headers["cache-control"] == "no-store"
    assert response_json["key"].startswith(f"lsk_{response_json['id']}_")
    secret = response_json["key"].rpartition("_")[2]
    assert len(secret) == 64, "256 bits"
    later = [callers.admin.http.get(path).text for path in (f"/api-keys/{response_json['id']}", "/api-keys")]
    later.append(callers.admin.http.delete(f"/api-keys/{response_json['id']}").text)
    assert [text for text in later if secret in text or '"key"' in text] == []


def test_get_returns_a_key_as_it_was_created(callers: Callers) -> None:
    quota: Json = {"requests_per_second": 2.5, "max_leases": 7, "expires_at": "2100-01-01T00:00:00Z"}
    created = callers.key("work:email.*", "read", "work:email.*", **quota)
    response_json = callers.admin.get(f"/api-keys/{created.id}")
    assert parse_time(response_json.pop("created_at")) < parse_time(response_json["expires_at"])
    assert response_json == {"id": created.id, "name": created.name, "scopes": ["work:email.*", "read"], **quota}


@table("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_authorization_scheme_is_case_insensitive(scheme: str, callers: Callers) -> None:
    assert callers.with_key(callers.key().text, scheme=scheme).http.get("/jobs").status_code == 200


@table("scope", ["root", "", "work:", "work:a b", "work:a\n", "work\n", "Work", "work:é", "work:a,read", "work:(a|b)"])
def test_invalid_scope_is_rejected(scope: str, admin: Api) -> None:
    problem = admin.post("/api-keys", {"name": "wrong", "scopes": ["read", scope]}, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/scopes/1"]


@table(
    "fields",
    [
        *(
            {"scopes": []},
            {"name": "a b"},
            {"name": ""},
            {"max_leases": 0},
            {"requests_per_second": 0},
            {"requests_per_second": -1},
        ),
        *(
            {"expires_at": "2020-01-01T00:00:00Z"},
            {"id": "0123456789abcdef"},
            {"key": "mine"},
            {"mac": ""},
            {"revoked_at": None},
        ),
    ],
)
def test_invalid_or_read_only_member_of_a_key_is_rejected(fields: Json, admin: Api) -> None:
    """A caller may not set read-only members, either (OWASP API3)."""
    problem = admin.post("/api-keys", {"name": "wrong", "scopes": ["read"], **fields}, status=422)
    assert problem["errors"][0]["pointer"].startswith(f"/{next(iter(fields))}")


def test_list_returns_keys_newest_first_in_pages(callers: Callers) -> None:
    created = [callers.key("read").id for _ in range(3)]
    pages = callers.admin.pages("/api-keys", limit=2)
    assert [key["id"] for page in pages for key in page][:3] == created[::-1]
    assert {len(page) for page in pages[:-1]} == {2}


def test_name_can_have_two_live_keys_for_rotation(callers: Callers) -> None:
    old, new = callers.key(name="rotating"), callers.key(name="rotating")
    assert [key.api.http.get("/jobs").status_code for key in (old, new)] == [200, 200]
    assert (
        callers.admin.post("/api-keys", {"name": "rotating", "scopes": ["read"]}, status=409)["code"] == "too_many_keys"
    )
    callers.revoke(old)
    assert [key.api.http.get("/jobs").status_code for key in (old, new)] == [401, 200]
    assert callers.key(name="rotating").api.http.get("/jobs").status_code == 200


def test_expired_key_is_rejected_and_does_not_count_as_live(callers: Callers, expire: Callable[[Key], None]) -> None:
    old, new = callers.key(name="expiring"), callers.key(name="expiring")
    expire(old)
    assert [key.api.http.get("/jobs").status_code for key in (old, new)] == [401, 200]
    callers.key(name="expiring")


def test_concurrent_creations_make_at_most_two_keys_of_one_name(callers: Callers, background: Background) -> None:
    def make() -> int:
        return callers.admin.http.post("/api-keys", json={"name": "wanted-by-many", "scopes": ["read"]}).status_code

    assert sorted(background.together(*[make] * 6)) == [201, 201, 409, 409, 409, 409]


def test_revoked_key_is_rejected_at_once(callers: Callers) -> None:
    key = callers.key()
    response_json = callers.revoke(key)
    assert key.api.http.get("/jobs").status_code == 401
    assert callers.revoke(key) == response_json, "revoking again changes nothing"
    assert parse_time(callers.admin.get(f"/api-keys/{key.id}")["revoked_at"]) == parse_time(response_json["revoked_at"])


def test_only_the_right_secret_learns_that_its_key_was_revoked_or_expired(
    callers: Callers, expire: Callable[[Key], None]
) -> None:
    keys = {"revoked": callers.key(), "expired": callers.key(), "send a valid": callers.key()}
    callers.revoke(keys["revoked"])
    expire(keys["expired"])
    guessed = {f"guessed {reason}": f"{key.text[:-64]}{'0' * 64}" for reason, key in keys.items()}
    texts = {"revoked": keys["revoked"].text, "expired": keys["expired"].text, **guessed}
    details = {reason: callers.with_key(text).get("/jobs", status=401)["detail"] for reason, text in texts.items()}
    wrong = {
        reason: detail
        for reason, detail in details.items()
        if ("send a valid" if "guessed" in reason else reason) not in detail
    }
    assert wrong == {}


def test_unknown_key_id_is_not_found(admin: Api) -> None:
    assert admin.get("/api-keys/0123456789abcdef", status=404)["code"] == "not_found"
    assert admin.delete("/api-keys/0123456789abcdef", status=404)["code"] == "not_found"
    assert admin.get("/api-keys/no-id", status=422)["errors"][0]["pointer"] == "/path/key_id"


def test_other_brokers_learn_of_created_and_revoked_keys(
    callers: Callers, second_broker: RunningBroker, eventually: Callable[..., Any]
) -> None:
    key = callers.key()

    def status_there() -> int:
        return second_broker.http.get("/jobs", headers={"Authorization": f"Bearer {key.text}"}).status_code

    eventually(lambda: status_there() == 200)
    callers.revoke(key)
    eventually(lambda: status_there() == 401)
    assert {status_there() for _ in range(5)} == {401}


def test_key_that_manages_only_some_queues_cannot_create_keys(callers: Callers) -> None:
    """Otherwise it could grant itself the other queues."""
    manager = callers.api("manage:email.*", "manage:queue-*")
    problem = manager.post("/api-keys", {"name": "mine", "scopes": ["manage"]}, status=403)
    assert problem["code"] == "forbidden"


def test_scope_admin_expands_to_all_four_scopes(admin: Api) -> None:
    scopes = {
        ("admin",): ["enqueue", "work", "read", "manage"],
        ("admin:a.*",): ["enqueue:a.*", "work:a.*", "read:a.*", "manage:a.*"],
        ("read", "admin"): ["read", "enqueue", "work", "manage"],
    }
    created = {
        scopes_sent: admin.post("/api-keys", {"name": f"admin-{number}", "scopes": scopes_sent}, status=201)
        for number, scopes_sent in enumerate(scopes)
    }
    assert {scopes_sent: key["scopes"] for scopes_sent, key in created.items()} == scopes


@pytest.mark.parametrize("instant", ["infinity", "9999-12-31T23:59:59.999999Z"])
def test_stored_key_that_expires_at_the_end_of_the_calendar_works(
    callers: Callers, key_db: TestDatabase, instant: str
) -> None:
    key = callers.key()
    key_db.execute(f"UPDATE api_keys SET expires_at = '{instant}' WHERE id = $1", key.id)
    callers.key()  # makes the broker reload all keys
    assert key.api.get("/queues", limit=1)["items"] is not None
    assert callers.admin.get(f"/api-keys/{key.id}")["id"] == key.id
    assert key.id in [listed["id"] for listed in callers.admin.get("/api-keys", limit=1000)["items"]]
