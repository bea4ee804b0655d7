"""POST /dead-letters/purge."""

from typing import Any
from uuid import uuid4

from tests.api_client import Api
from tests.table import table


def test_purge_is_a_dry_run_by_default(api: Api) -> None:
    job = api.dead_letter()
    assert api.post("/dead-letters/purge", {"filter": {}, "all": True}) == {"matched": 1, "purged": 0, "dry_run": True}
    by_ids = {"ids": [job["id"], str(uuid4())], "dry_run": True}
    assert api.post("/dead-letters/purge", by_ids) == {"matched": 1, "purged": 0, "dry_run": True}
    assert api.counts() == {"dead": 1}


def test_purged_dead_letters_are_deleted(api: Api) -> None:
    job, kept = api.dead_letter(), api.dead_letter()
    assert api.post("/dead-letters/purge", {"ids": [job["id"], str(uuid4())], "dry_run": False}) == {
        "matched": 1,
        "purged": 1,
    }
    api.get(f"/dead-letters/{job['id']}", status=404)
    api.get(f"/jobs/{job['id']}", status=404)
    assert api.job(kept["id"])["state"] == "dead"
    assert api.counts() == {"dead": 1}


def test_purge_by_filter_deletes_only_matching_dead_letters(api: Api) -> None:
    for queue in ("a", "b"):
        for _ in range(2):
            api.dead_letter(queue=f"{api.queue}-{queue}")
    assert api.post("/dead-letters/purge", {"filter": {"queue": f"{api.queue}-a"}, "dry_run": False}) == {
        "matched": 2,
        "purged": 2,
    }
    assert {letter["queue"] for letter in api.get("/dead-letters")["items"]} == {f"{api.queue}-b"}


def test_purge_keeps_live_and_finished_jobs(api: Api) -> None:
    completed = api.enqueue()
    api.complete(api.claim_one())
    live = api.enqueue()
    ids = [completed["id"], live["id"]]
    assert api.post("/dead-letters/purge", {"ids": ids, "dry_run": False}) == {"matched": 0, "purged": 0}
    assert api.counts() == {"completed": 1, "ready": 1}


@table(
    ("body", "pointer"),
    [
        ({}, "/filter"),
        ({"ids": [], "filter": {}}, "/filter"),
        ({"all": True, "limit": 1}, "/limit"),
        ({"ids": ["42"]}, "/ids/0"),
    ],
)
def test_invalid_purge_is_rejected_with_a_pointer(api: Api, body: Any, pointer: str) -> None:
    assert api.post("/dead-letters/purge", {**body, "dry_run": False}, status=422)["errors"][0]["pointer"] == pointer
