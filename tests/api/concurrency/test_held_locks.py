"""A lane lock held by another transaction delays claims of its own queue only."""

from collections.abc import Callable
from typing import Any

import pytest

from app.broker import build_broker
from app.errors import DatabaseUnavailable
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background

CLAIMS: dict[str, Json] = {"plain": {}, "with idempotency key": {"key": "claim-1"}, "of several jobs": {"max_jobs": 5}}
WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%lock_lane%'"
INSERT_MISPLACED = """
WITH added AS (
    INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, group_key, payload)
    SELECT id * 256, gen_random_uuid(), 'ready', now(), 0, 5, name, 'group', '1'
    FROM queues
    WHERE name = $1
    RETURNING lane, priority, id
)
INSERT INTO ready_spans SELECT lane, priority, id, id FROM added
"""


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


def test_locked_job_does_not_keep_jobs_of_other_queues_from_being_held_back(postgres: str, loop: Loop) -> None:
    """Jobs that were inserted as ready by a transaction that did not know the limit yet."""
    dsn = create_database(postgres, loop, "misplaced")
    db = TestDatabase(dsn, loop)
    names = ["first", "second"]
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        for name in names:
            Api(broker.http, name).configure(max_running_per_group=1)
    for name in names:
        db.execute(INSERT_MISPLACED, name)
    broker_services = build_broker(TEST_SETTINGS, dsn)
    loop.run(broker_services.infra.db.open())
    loop.run(broker_services.queues.refresh())
    locked = "SELECT FROM jobs WHERE job_type = 'first' FOR UPDATE"
    with db.uncommitted(locked), pytest.raises(DatabaseUnavailable):
        loop.run(broker_services.rule_changes._hold_back_all())
    states = {row["job_type"]: row["state"] for row in db.rows("SELECT job_type, state FROM jobs")}
    loop.run(broker_services.infra.db.close())
    db.close()
    assert states == {"first": "ready", "second": "pending"}
