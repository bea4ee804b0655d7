"""GET /dead-letters and GET /dead-letters/{id}."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.table import table


def ids(letters: list[Json]) -> list[str]:
    return [letter["id"] for letter in letters]


def test_dead_letter_contains_the_job_and_its_dead_at_and_fingerprint(api: Api) -> None:
    job = api.dead_letter({"message": "no", "error_type": "Net"}, payload={"n": 1}, tags=["t"])
    letter = api.get(f"/dead-letters/{job['id']}")
    job_json = api.job(job["id"])
    assert letter == {**job_json, "dead_at": job_json["finished_at"], "fingerprint": "Net: no"}
    assert (job_json["state"], job_json["state_reason"], job_json["payload"]) == ("dead", "not_retryable", {"n": 1})


def test_list_returns_dead_letters_latest_first(api: Api) -> None:
    jobs = [api.dead_letter() for _ in range(3)]
    listed = api.get("/dead-letters")["items"]
    assert listed == [api.get(f"/dead-letters/{job['id']}") for job in reversed(jobs)]


def test_live_and_finished_jobs_are_not_dead_letters(api: Api) -> None:
    job = api.enqueue()
    assert api.get(f"/dead-letters/{job['id']}", status=404)["code"] == "not_found"
    api.complete(api.claim_one())
    assert api.get("/dead-letters") == {"items": []}
    api.get(f"/dead-letters/{uuid4()}", status=404)
    api.get("/dead-letters/42", status=422)


@pytest.mark.parametrize("name", ["queue", "job_type", "reason", "error_type", "fingerprint"])
def test_list_filter_returns_only_matching_dead_letters(api: Api, name: str) -> None:
    matching = api.dead_letter({"message": "a 1", "error_type": "Net"}, queue=f"{api.queue}-a", job_type="mail")
    other = api.enqueue(max_attempts=1)
    api.fail(api.claim_one(), error={"message": "b", "error_type": "Disk"})
    values = {
        "queue": matching["queue"],
        "job_type": "mail",
        "reason": "not_retryable",
        "error_type": "Net",
        "fingerprint": "Net: a #",
    }
    assert ids(api.get("/dead-letters", **{name: values[name]})["items"]) == [matching["id"]]
    assert len(api.get("/dead-letters")["items"]) == 2
    assert api.get(f"/dead-letters/{other['id']}")["state_reason"] == "attempts_exhausted"


def test_dead_after_includes_its_instant_and_dead_before_does_not(api: Api, db: TestDatabase) -> None:
    old, new = api.dead_letter(), api.dead_letter()
    db.execute("UPDATE dead_letters SET dead_at = dead_at - interval '1 day' WHERE id = $1", old["id"])
    instant = api.get(f"/dead-letters/{new['id']}")["dead_at"]
    assert ids(api.get("/dead-letters", dead_after=instant)["items"]) == [new["id"]]
    assert ids(api.get("/dead-letters", dead_before=instant)["items"]) == [old["id"]]


def test_list_accepts_the_earliest_and_latest_instants(api: Api) -> None:
    job = api.dead_letter()
    first, last = "1970-01-01T14:00:00+14:00", "9999-12-31T13:59:59+14:00"
    assert ids(api.get("/dead-letters", dead_after=first, dead_before=last)["items"]) == [job["id"]]
    assert api.get("/dead-letters", dead_after=last) == {"items": []}
    assert api.get("/dead-letters", dead_before=first) == {"items": []}


def test_list_of_an_unknown_queue_is_empty(api: Api) -> None:
    api.dead_letter()
    assert api.get("/dead-letters", queue="no-such-queue") == {"items": []}


def test_pages_contain_every_dead_letter_once_even_with_equal_dead_at(api: Api) -> None:
    for queue in ("a", "b"):
        results = api.batch(*[{"queue": f"{api.queue}-{queue}"}] * 5)["results"]
        leases = api.claim(queues=[f"{api.queue}-{queue}"], max_jobs=5)["jobs"]
        failed: Json = {"outcome": "fail", "error": {"message": "no"}, "retryable": False}
        api.settle(*[{**failed, "job_id": job["id"], "lease_token": job["lease_token"]} for job in leases])
        assert len(results) == len(leases)
    pages = api.pages("/dead-letters", limit=3)
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    keys = [(letter["dead_at"], letter["id"]) for page in pages for letter in page]
    assert keys == sorted(set(keys), reverse=True)
    assert len(keys) == 10


@table(
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
def test_invalid_query_parameter_of_the_dead_letter_list_is_rejected_with_a_pointer(
    api: Api, name: str, value: Any
) -> None:
    problem = api.get("/dead-letters", **{name: value}, status=422)
    assert problem["errors"][0]["pointer"] == f"/query/{name}"
