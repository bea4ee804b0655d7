"""The life of a key: made, told once, used, rotated, expired, revoked."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json, when
from tests.api_keys.conftest import Callers, Key
from tests.broker import RunningBroker
from tests.database import TestDatabase
from tests.polls import Background


def test_a_key_is_told_once(callers: Callers) -> None:
    response = callers.admin.http.post("/api-keys", json={"name": "told-once", "scopes": ["read"]})
    told = response.json()
    assert response.headers["location"] == f"/api-keys/{told['id']}"
    assert response.headers["cache-control"] == "no-store"
    assert told["key"].startswith(f"lsk_{told['id']}_")
    secret = told["key"].rpartition("_")[2]
    assert len(secret) == 64, "256 bits"
    later = [callers.admin.http.get(path).text for path in (f"/api-keys/{told['id']}", "/api-keys")]
    later.append(callers.admin.http.delete(f"/api-keys/{told['id']}").text)
    assert [text for text in later if secret in text or '"key"' in text] == []


def test_a_key_is_told_as_it_was_made(callers: Callers) -> None:
    quota: Json = {"requests_per_second": 2.5, "max_leases": 7, "expires_at": "2100-01-01T00:00:00Z"}
    made = callers.key("work:email.*", "read", "work:email.*", **quota)
    told = callers.admin.get(f"/api-keys/{made.id}")
    assert when(told.pop("created_at")) < when(told["expires_at"])
    assert told == {"id": made.id, "name": made.name, "scopes": ["work:email.*", "read"], **quota}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_the_scheme_may_be_spelt_as_one_likes(scheme: str, callers: Callers) -> None:
    assert callers.holding(callers.key().text, scheme=scheme).http.get("/jobs").status_code == 200


@pytest.mark.parametrize(
    "scope", ["root", "", "work:", "work:a b", "work:a\n", "work\n", "Work", "work:é", "work:a,read", "work:(a|b)"]
)
def test_what_is_no_scope_is_refused(scope: str, admin: Api) -> None:
    problem = admin.post("/api-keys", {"name": "wrong", "scopes": ["read", scope]}, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/scopes/1"]


@pytest.mark.parametrize(
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
    ids=str,
)
def test_what_makes_no_key_is_refused(fields: Json, admin: Api) -> None:
    """Nor may the caller choose what is ours to choose (OWASP API3)."""
    problem = admin.post("/api-keys", {"name": "wrong", "scopes": ["read"], **fields}, status=422)
    assert problem["errors"][0]["pointer"].startswith(f"/{next(iter(fields))}")


def test_keys_are_listed_newest_first_and_page_by_page(callers: Callers) -> None:
    made = [callers.key("read").id for _ in range(3)]
    pages = callers.admin.pages("/api-keys", limit=2)
    assert [key["id"] for page in pages for key in page][:3] == made[::-1]
    assert {len(page) for page in pages[:-1]} == {2}


def test_a_name_has_two_live_keys_so_that_one_can_take_over(callers: Callers) -> None:
    old, new = callers.key(name="rotating"), callers.key(name="rotating")
    assert [key.api.http.get("/jobs").status_code for key in (old, new)] == [200, 200]
    assert (
        callers.admin.post("/api-keys", {"name": "rotating", "scopes": ["read"]}, status=409)["code"] == "too_many_keys"
    )
    callers.revoke(old)
    assert [key.api.http.get("/jobs").status_code for key in (old, new)] == [401, 200]
    assert callers.key(name="rotating").api.http.get("/jobs").status_code == 200


def test_an_expired_key_is_refused_and_makes_room(callers: Callers, expire: Callable[[Key], None]) -> None:
    old, new = callers.key(name="expiring"), callers.key(name="expiring")
    expire(old)
    assert [key.api.http.get("/jobs").status_code for key in (old, new)] == [401, 200]
    callers.key(name="expiring")


def test_many_who_make_keys_at_once_make_two(callers: Callers, background: Background) -> None:
    def make() -> int:
        return callers.admin.http.post("/api-keys", json={"name": "wanted-by-many", "scopes": ["read"]}).status_code

    assert sorted(background.together(*[make] * 6)) == [201, 201, 409, 409, 409, 409]


def test_a_revoked_key_is_refused_from_then_on(callers: Callers) -> None:
    key = callers.key()
    told = callers.revoke(key)
    assert key.api.http.get("/jobs").status_code == 401
    assert callers.revoke(key) == told, "again changes nothing"
    assert when(callers.admin.get(f"/api-keys/{key.id}")["revoked_at"]) == when(told["revoked_at"])


def test_only_the_right_secret_learns_that_its_key_has_ended(callers: Callers, expire: Callable[[Key], None]) -> None:
    keys = {"revoked": callers.key(), "expired": callers.key(), "send a valid key": callers.key()}
    callers.revoke(keys["revoked"])
    expire(keys["expired"])
    guessed = {f"guessed {reason}": f"{key.text[:-64]}{'0' * 64}" for reason, key in keys.items()}
    texts = {"revoked": keys["revoked"].text, "expired": keys["expired"].text, **guessed}
    details = {reason: callers.holding(text).get("/jobs", status=401)["detail"] for reason, text in texts.items()}
    wrong = {
        reason: detail
        for reason, detail in details.items()
        if ("send a valid" if "guessed" in reason else reason) not in detail
    }
    assert wrong == {}


def test_there_is_no_key_that_was_never_made(admin: Api) -> None:
    assert admin.get("/api-keys/0123456789abcdef", status=404)["code"] == "not_found"
    assert admin.delete("/api-keys/0123456789abcdef", status=404)["code"] == "not_found"
    assert admin.get("/api-keys/no-id", status=422)["errors"][0]["pointer"] == "/path/key_id"


def test_other_brokers_hear_of_keys_that_are_made_and_revoked(
    callers: Callers, another: RunningBroker, eventually: Callable[..., Any]
) -> None:
    key = callers.key()

    def there() -> int:
        return another.http.get("/jobs", headers={"Authorization": f"Bearer {key.text}"}).status_code

    eventually(lambda: there() == 200)
    callers.revoke(key)
    eventually(lambda: there() == 401)
    assert {there() for _ in range(5)} == {401}


def test_a_manager_of_some_queues_makes_no_keys(callers: Callers) -> None:
    """It could give itself the rest."""
    some = callers.api("manage:email.*", "manage:queue-*")
    problem = some.post("/api-keys", {"name": "mine", "scopes": ["manage"]}, status=403)
    assert problem["code"] == "forbidden"


def test_admin_stands_for_all_four_scopes(admin: Api) -> None:
    scopes = {
        ("admin",): ["enqueue", "work", "read", "manage"],
        ("admin:a.*",): ["enqueue:a.*", "work:a.*", "read:a.*", "manage:a.*"],
        ("read", "admin"): ["read", "enqueue", "work", "manage"],
    }
    made = {
        sent: admin.post("/api-keys", {"name": f"admin-{number}", "scopes": sent}, status=201)
        for number, sent in enumerate(scopes)
    }
    assert {sent: key["scopes"] for sent, key in made.items()} == scopes


@pytest.mark.parametrize("instant", ["infinity", "9999-12-31T23:59:59.999999Z"])
def test_stored_key_that_expires_at_the_end_of_the_calendar_works(
    callers: Callers, stored: TestDatabase, instant: str
) -> None:
    key = callers.key()
    stored.execute(f"UPDATE api_keys SET expires_at = '{instant}' WHERE id = $1", key.id)
    callers.key()  # makes the broker read all keys anew
    assert key.api.get("/queues", limit=1)["items"] is not None
    assert callers.admin.get(f"/api-keys/{key.id}")["id"] == key.id
    assert key.id in [listed["id"] for listed in callers.admin.get("/api-keys", limit=1000)["items"]]
