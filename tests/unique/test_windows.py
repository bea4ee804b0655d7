"""for_seconds: a key is kept for a time from the creation of its job, whatever becomes of it."""

from collections.abc import Callable

import pytest

from tests.api import Api, Json
from tests.database import TestDatabase
from tests.unique.keys import has, window_over

End = Callable[[Api, Json], object]
ENDS: dict[str, End] = {
    "completed": lambda api, _: api.complete(api.claim_one()),
    "dead": lambda api, _: api.fail(api.claim_one(), retryable=False),
    "cancelled": lambda api, job: api.cancel(job),
    "running": lambda api, _: api.claim_one(),
    "ready": lambda api, _: None,
}


@pytest.mark.parametrize("state", ENDS)
def test_within_the_window_a_job_has_its_key_whatever_becomes_of_it(api: Api, state: str) -> None:
    first = api.enqueue(**has(for_seconds=60))
    ENDS[state](api, first)
    again = api.enqueue(status=200, **has())
    assert (again["id"], again["state"]) == (first["id"], state)
    assert api.enqueue(status=409, **has(on_duplicate="reject"))["existing_job_id"] == first["id"]


@pytest.mark.parametrize("state", ENDS)
def test_when_the_window_is_over_the_key_is_free_whatever_became_of_the_job(
    api: Api, db: TestDatabase, state: str
) -> None:
    first = api.enqueue(**has(for_seconds=60))
    ENDS[state](api, first)
    window_over(db)
    second = api.enqueue(**has(for_seconds=60))
    assert second["id"] != first["id"]
    assert api.enqueue(status=200, **has())["id"] == second["id"]


def test_a_window_ends_at_its_time_and_not_before(api: Api, db: TestDatabase) -> None:
    api.enqueue(**has(for_seconds=3600))
    seconds = db.value("SELECT extract(epoch FROM expires_at - now()) FROM keys WHERE answer = 'window'")
    assert 3000 < seconds <= 3600


def test_a_duplicate_does_not_prolong_the_window(api: Api, db: TestDatabase) -> None:
    api.enqueue(**has(for_seconds=60))
    until = db.value("SELECT expires_at FROM keys WHERE job_id IS NOT NULL")
    for what in ("return_existing", "replace"):
        api.enqueue(status=200, **has(for_seconds=3600, on_duplicate=what))
    assert db.value("SELECT expires_at FROM keys WHERE job_id IS NOT NULL") == until


def test_the_rule_is_that_of_the_job_that_has_the_key(api: Api) -> None:
    first = api.enqueue(**has())
    assert api.enqueue(status=200, **has(for_seconds=60))["id"] == first["id"]
    api.complete(api.claim_one())
    assert api.enqueue(**has(for_seconds=60))["id"] != first["id"]


def test_a_purged_job_holds_no_key_even_within_its_window(api: Api) -> None:
    first = api.enqueue(**has(for_seconds=3600))
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    assert api.enqueue(**has())["id"] != first["id"]


def test_a_purged_dead_letter_holds_no_key_even_within_its_window(api: Api) -> None:
    first = api.dead(**has(for_seconds=3600))
    assert api.enqueue(status=200, **has())["id"] == first["id"]
    api.post("/dead-letters/purge", {"ids": [first["id"]], "dry_run": False})
    assert api.enqueue(**has())["id"] != first["id"]


def test_a_finished_job_that_is_no_longer_kept_holds_no_key(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**has(for_seconds=3600))
    api.complete(api.claim_one())
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute'")
    assert api.enqueue(**has())["id"] != first["id"]
