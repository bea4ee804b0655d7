"""for_seconds: a job has its unique key for a time from its creation, whatever its state."""

from collections.abc import Callable

import pytest

from tests.api.unique_keys.keys import end_windows, with_key
from tests.api_client import Api, Json
from tests.database import TestDatabase

End = Callable[[Api, Json], object]
ENDS: dict[str, End] = {
    "completed": lambda api, _: api.complete(api.claim_one()),
    "dead": lambda api, _: api.fail(api.claim_one(), retryable=False),
    "cancelled": lambda api, job: api.cancel(job),
    "running": lambda api, _: api.claim_one(),
    "ready": lambda api, _: None,
}


@pytest.mark.parametrize("state", ENDS)
def test_job_has_its_unique_key_within_the_window_in_every_state(api: Api, state: str) -> None:
    first = api.enqueue(**with_key(for_seconds=60))
    ENDS[state](api, first)
    again = api.enqueue(status=200, **with_key())
    assert (again["id"], again["state"]) == (first["id"], state)
    assert api.enqueue(status=409, **with_key(on_duplicate="reject"))["existing_job_id"] == first["id"]


@pytest.mark.parametrize("state", ENDS)
def test_unique_key_is_free_after_the_window_in_every_state(api: Api, db: TestDatabase, state: str) -> None:
    first = api.enqueue(**with_key(for_seconds=60))
    ENDS[state](api, first)
    end_windows(db)
    second = api.enqueue(**with_key(for_seconds=60))
    assert second["id"] != first["id"]
    assert api.enqueue(status=200, **with_key())["id"] == second["id"]


def test_window_of_a_unique_key_ends_on_time_and_not_earlier(api: Api, db: TestDatabase) -> None:
    api.enqueue(**with_key(for_seconds=3600))
    seconds = db.value(
        "SELECT extract(epoch FROM expires_at - now()) FROM deduplication_keys WHERE response = 'window'"
    )
    assert 3000 < seconds <= 3600


def test_duplicate_does_not_extend_the_window(api: Api, db: TestDatabase) -> None:
    api.enqueue(**with_key(for_seconds=60))
    until = db.value("SELECT expires_at FROM deduplication_keys WHERE job_id IS NOT NULL")
    for on_duplicate in ("return_existing", "replace"):
        api.enqueue(status=200, **with_key(for_seconds=3600, on_duplicate=on_duplicate))
    assert db.value("SELECT expires_at FROM deduplication_keys WHERE job_id IS NOT NULL") == until


def test_window_of_the_existing_job_decides(api: Api) -> None:
    first = api.enqueue(**with_key())
    assert api.enqueue(status=200, **with_key(for_seconds=60))["id"] == first["id"]
    api.complete(api.claim_one())
    assert api.enqueue(**with_key(for_seconds=60))["id"] != first["id"]


def test_purged_job_frees_its_unique_key_within_the_window(api: Api) -> None:
    first = api.enqueue(**with_key(for_seconds=3600))
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})
    assert api.enqueue(**with_key())["id"] != first["id"]


def test_purged_dead_letter_frees_its_unique_key_within_the_window(api: Api) -> None:
    first = api.dead_letter(**with_key(for_seconds=3600))
    assert api.enqueue(status=200, **with_key())["id"] == first["id"]
    api.post("/dead-letters/purge", {"ids": [first["id"]], "dry_run": False})
    assert api.enqueue(**with_key())["id"] != first["id"]


def test_finished_job_past_its_retention_frees_its_unique_key(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**with_key(for_seconds=3600))
    api.complete(api.claim_one())
    db.execute("UPDATE finished_jobs SET keep_until = now() - interval '1 minute'")
    assert api.enqueue(**with_key())["id"] != first["id"]
