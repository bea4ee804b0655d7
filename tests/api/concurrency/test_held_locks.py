"""A lane lock held by another transaction delays claims of its own queue only."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.polls import Background

CLAIMS: dict[str, Json] = {"plain": {}, "with idempotency key": {"key": "claim-1"}, "of several jobs": {"max_jobs": 5}}
WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%lock_lane%'"


@pytest.fixture
def queues(api: Api) -> list[str]:
    """A limited queue and an unlimited one.

    The lane lock of the first exists, because a job was claimed from it.
    """
    api.configure(max_running=5)
    api.enqueue()
    api.complete(api.claim_one())
    return [api.queue, f"{api.queue}-unlimited"]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_claim_uses_the_other_queue_while_the_lane_lock_of_the_first_is_held(
    api: Api, db: TestDatabase, queues: list[str], claim: Json
) -> None:
    api.enqueue()
    other = api.enqueue(queue=queues[1])
    with db.lane_locked(queues[0]):
        assert api.claim_one(queues=queues, **claim)["id"] == other["id"]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_claim_waits_for_the_lane_lock_when_no_other_queue_has_jobs(
    api: Api, db: TestDatabase, queues: list[str], claim: Json, background: Background, eventually: Callable[..., Any]
) -> None:
    job = api.enqueue()
    with db.lane_locked(queues[0]):
        waiting = background.submit(api.claim, queues=queues, **claim)
        eventually(lambda: db.value(WAITERS) == 1)
    assert [claimed["id"] for claimed in waiting.result(20)["jobs"]] == [job["id"]]


def test_claim_prefers_the_first_queue_while_its_lane_lock_is_free(api: Api, queues: list[str]) -> None:
    api.enqueue(queue=queues[1])
    first = api.enqueue()
    assert api.claim_one(queues=queues)["id"] == first["id"]
