"""GET /dead-letters and GET /dead-letters/{id}."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api import Api, Json
from tests.database import TestDatabase


def ids(letters: list[Json]) -> list[str]:
    return [letter["id"] for letter in letters]


def test_a_dead_letter_is_the_job_and_when_and_why_it_died(api: Api) -> None:
    job = api.dead({"message": "no", "error_type": "Net"}, payload={"n": 1}, tags=["t"])
    letter = api.get(f"/dead-letters/{job['id']}")
    told = api.job(job["id"])
    assert letter == {**told, "dead_at": told["finished_at"], "fingerprint": "Net: no"}
    assert (told["state"], told["state_reason"], told["payload"]) == ("dead", "not_retryable", {"n": 1})


def test_the_list_tells_the_same_latest_first(api: Api) -> None:
    jobs = [api.dead() for _ in range(3)]
    listed = api.get("/dead-letters")["items"]
    assert listed == [api.get(f"/dead-letters/{job['id']}") for job in reversed(jobs)]


def test_live_and_finished_jobs_are_no_dead_letters(api: Api) -> None:
    job = api.enqueue()
    assert api.get(f"/dead-letters/{job['id']}", status=404)["code"] == "not_found"
    api.complete(api.claim_one())
    assert api.get("/dead-letters") == {"items": []}
    api.get(f"/dead-letters/{uuid4()}", status=404)
    api.get("/dead-letters/42", status=422)


@pytest.mark.parametrize("name", ["queue", "job_type", "reason", "error_type", "fingerprint"])
def test_each_filter_leaves_only_what_fulfils_it(api: Api, name: str) -> None:
    wanted = api.dead({"message": "a 1", "error_type": "Net"}, queue=f"{api.queue}-a", job_type="mail")
    other = api.enqueue(max_attempts=1)
    api.fail(api.claim_one(), error={"message": "b", "error_type": "Disk"})
    values = {
        "queue": wanted["queue"],
        "job_type": "mail",
        "reason": "not_retryable",
        "error_type": "Net",
        "fingerprint": "Net: a #",
    }
    assert ids(api.get("/dead-letters", **{name: values[name]})["items"]) == [wanted["id"]]
    assert len(api.get("/dead-letters")["items"]) == 2
    assert api.get(f"/dead-letters/{other['id']}")["state_reason"] == "attempts_exhausted"


def test_dead_after_includes_its_instant_and_dead_before_does_not(api: Api, db: TestDatabase) -> None:
    old, new = api.dead(), api.dead()
    db.execute("UPDATE dead_letters SET dead_at = dead_at - interval '1 day' WHERE id = $1", old["id"])
    instant = api.get(f"/dead-letters/{new['id']}")["dead_at"]
    assert ids(api.get("/dead-letters", dead_after=instant)["items"]) == [new["id"]]
    assert ids(api.get("/dead-letters", dead_before=instant)["items"]) == [old["id"]]


def test_everything_died_between_the_beginning_and_the_end_of_time(api: Api) -> None:
    job = api.dead()
    first, last = "1970-01-01T14:00:00+14:00", "9999-12-31T13:59:59+14:00"
    assert ids(api.get("/dead-letters", dead_after=first, dead_before=last)["items"]) == [job["id"]]
    assert api.get("/dead-letters", dead_after=last) == {"items": []}
    assert api.get("/dead-letters", dead_before=first) == {"items": []}


def test_an_unknown_queue_has_no_dead_letters(api: Api) -> None:
    api.dead()
    assert api.get("/dead-letters", queue="no-such-queue") == {"items": []}


def test_pages_hold_every_letter_once_even_when_many_died_at_once(api: Api) -> None:
    for queue in ("a", "b"):
        made = api.batch(*[{"queue": f"{api.queue}-{queue}"}] * 5)["results"]
        held = api.claim(queues=[f"{api.queue}-{queue}"], max_jobs=5)["jobs"]
        failed: Json = {"outcome": "fail", "error": {"message": "no"}, "retryable": False}
        api.settle(*[{**failed, "job_id": job["id"], "lease_token": job["lease_token"]} for job in held])
        assert len(made) == len(held)
    pages = api.pages("/dead-letters", limit=3)
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    found = [(letter["dead_at"], letter["id"]) for page in pages for letter in page]
    assert found == sorted(set(found), reverse=True)
    assert len(found) == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", 0),
        ("limit", 1001),
        ("colour", "red"),
        ("dead_after", "2026-01-01T00:00:00"),
        ("dead_before", "-1"),
        ("cursor", "nonsense"),
        ("cursor", "eyJhdCI6ICJ4IiwgImlkIjogIngifQ=="),
        ("cursor", "eyJhdCI6ICIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgImlkIjogIngifQ=="),
        ("cursor", "eyJhdCI6ICIyMDI2LTAxLTAxIiwgImlkIjogIjAwMDAwMDAwLTAwMDAtMDAwMC0wMDAwLTAwMDAwMDAwMDAwMCJ9"),
    ],
)
def test_a_bad_parameter_is_pointed_at(api: Api, name: str, value: Any) -> None:
    problem = api.get("/dead-letters", **{name: value}, status=422)
    assert problem["errors"][0]["pointer"] == f"/query/{name}"
