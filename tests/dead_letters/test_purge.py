"""POST /dead-letters/purge."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api import Api


def test_a_purge_only_counts_unless_it_is_told_otherwise(api: Api) -> None:
    job = api.dead()
    assert api.post("/dead-letters/purge", {"filter": {}, "all": True}) == {"matched": 1, "purged": 0, "dry_run": True}
    named = {"ids": [job["id"], str(uuid4())], "dry_run": True}
    assert api.post("/dead-letters/purge", named) == {"matched": 1, "purged": 0, "dry_run": True}
    assert api.counts() == {"dead": 1}


def test_purged_letters_are_gone(api: Api) -> None:
    job, kept = api.dead(), api.dead()
    assert api.post("/dead-letters/purge", {"ids": [job["id"], str(uuid4())], "dry_run": False}) == {
        "matched": 1,
        "purged": 1,
    }
    api.get(f"/dead-letters/{job['id']}", status=404)
    api.get(f"/jobs/{job['id']}", status=404)
    assert api.job(kept["id"])["state"] == "dead"
    assert api.counts() == {"dead": 1}


def test_a_filter_purges_only_what_fulfils_it(api: Api) -> None:
    for queue in ("a", "b"):
        for _ in range(2):
            api.dead(queue=f"{api.queue}-{queue}")
    assert api.post("/dead-letters/purge", {"filter": {"queue": f"{api.queue}-a"}, "dry_run": False}) == {
        "matched": 2,
        "purged": 2,
    }
    assert {letter["queue"] for letter in api.get("/dead-letters")["items"]} == {f"{api.queue}-b"}


def test_a_purge_leaves_live_and_finished_jobs_alone(api: Api) -> None:
    done = api.enqueue()
    api.complete(api.claim_one())
    live = api.enqueue()
    ids = [done["id"], live["id"]]
    assert api.post("/dead-letters/purge", {"ids": ids, "dry_run": False}) == {"matched": 0, "purged": 0}
    assert api.counts() == {"completed": 1, "ready": 1}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/filter"),
        ({"ids": [], "filter": {}}, "/filter"),
        ({"all": True, "limit": 1}, "/limit"),
        ({"ids": ["42"]}, "/ids/0"),
    ],
)
def test_a_bad_request_is_pointed_at(api: Api, body: Any, pointer: str) -> None:
    assert api.post("/dead-letters/purge", {**body, "dry_run": False}, status=422)["errors"][0]["pointer"] == pointer
