"""Ten thousand waiting jobs of one busy group do not make claims of other groups more expensive."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from asyncpg import Record

from app.broker import Broker
from app.concurrency import store as concurrency
from app.db.pool import Executor
from app.leases import store
from app.leases.rows import ClaimParams, LanePolicy
from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase

OTHERS = 60
BUSY = 10_000


def claim_params() -> ClaimParams:
    """Returns parameters with a secret of their own: no two claims have the same."""
    return ClaimParams(
        worker_id="w",
        secret=secrets.token_hex(16),
        lease_seconds=None,
        default_lease_seconds=60,
        max_bytes=2**30,
        allow_one_oversized=True,
        job_types=None,
    )


class PageCounter:
    """Counts the pages that statements read: runs them under EXPLAIN ANALYZE."""

    def __init__(self, db: Executor) -> None:
        self._db = db
        self.pages = 0
        self.row_count = 0

    async def rows(self, sql: str, *args: object) -> list[Record]:
        plan: Json = json.loads(await self._db.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args))[0][
            "Plan"
        ]
        self.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.row_count += round(plan["Actual Rows"])
        return []

    async def row(self, sql: str, *args: object) -> Record | None:
        raise NotImplementedError

    async def value(self, sql: str, *args: object) -> Any:
        raise NotImplementedError


def fill(api: Api, queue: str, *, busy: int) -> None:
    """Enqueues jobs of the busy group first."""
    for first in range(0, busy, 1000):
        api.enqueue_many(min(1000, busy - first), queue=queue, group="busy", job_type="busy")
    api.batch(*[{"queue": queue, "group": f"other-{number}", "job_type": "other"} for number in range(OTHERS)])


def count_ready(db: TestDatabase, queue: str, job_type: str) -> int:
    count: int = db.value(
        """
        SELECT count(*)
        FROM jobs
        JOIN queues ON lane / 256 = queues.id
        WHERE name = $1 AND state = 'ready' AND job_type = $2
        """,
        queue,
        job_type,
    )
    return count


def lane_of(db: TestDatabase, queue: str) -> int:
    lane: int = db.value("SELECT id * 256 FROM queues WHERE name = $1", queue)
    return lane


def wait_for_strict_admissions(api: Api, db: TestDatabase, queue: str) -> None:
    wait_until(lambda: (count_ready(db, queue, "busy"), count_ready(db, queue, "other")) in [(0, OTHERS), (1, OTHERS)])


def wait_for_fair_admissions(api: Api, db: TestDatabase, queue: str) -> None:
    wait_until(lambda: count_ready(db, queue, "busy") > 0 and count_ready(db, queue, "other") == OTHERS)


def is_vacuumed(db: TestDatabase) -> bool:
    """Vacuums and returns whether few dead rows are left: a concurrent snapshot may have kept some.

    INDEX_CLEANUP, because vacuum skips the indexes when a table that other tests have made large
    has few dead rows.
    """
    db.execute("VACUUM (INDEX_CLEANUP ON) jobs")
    return bool(db.value("SELECT n_dead_tup < 100 FROM pg_stat_user_tables WHERE relname = 'jobs'"))


def start_cooldown(api: Api, db: TestDatabase, queue: str) -> None:
    """Cools the busy group down, and vacuums.

    Jobs that were ready before are dead entries of the index until it is vacuumed.
    """
    held = api.claim(queues=[queue], job_types=["busy"])["jobs"]
    for job in held:
        api.fail(job, scope="group", retry_after_seconds=3600)
    wait_until(lambda: count_ready(db, queue, "busy") == 0, seconds=60)
    wait_until(lambda: is_vacuumed(db))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "arrange"),
    [
        ({"max_running_per_group": 1}, wait_for_strict_admissions),
        ({"fair": True}, wait_for_fair_admissions),
        ({}, start_cooldown),
    ],
    ids=["strict", "fair", "cooling down"],
)
def test_backlog_of_one_group_does_not_make_claims_of_other_groups_more_expensive(
    api: Api,
    db: TestDatabase,
    broker_services: Broker,
    loop: Loop,
    config: Json,
    arrange: Callable[[Api, TestDatabase, str], None],
) -> None:
    pages = {}
    for queue, busy in ((f"{api.queue}-quiet", 1), (f"{api.queue}-busy", BUSY)):
        api.put(f"/queues/{queue}", config)
        fill(api, queue, busy=busy)
        arrange(api, db, queue)
        pages[busy] = loop.run(pages_per_claimed_job(broker_services, lane_of(db, queue), fair="fair" in config))
    assert pages[BUSY] <= 2 * pages[1] + 5, pages


async def pages_per_claimed_job(broker_services: Broker, lane: int, *, fair: bool) -> float:
    """Returns the pages read per claimed job; ten jobs are claimed at a time."""
    await broker_services.infra.config_versions.check_now()
    counter = PageCounter(broker_services.infra.db)
    for _ in range(OTHERS // 10):
        await store.claim(
            counter,
            lane,
            10,
            claim_params(),
            LanePolicy(broker_services.queues.held_groups(lane), fair=fair),
            broker_services.infra.now(),
        )
    assert counter.row_count == OTHERS
    return counter.pages / OTHERS


def test_backlog_of_one_group_does_not_make_admissions_more_expensive(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    pages = {}
    for queue, busy in ((f"{api.queue}-quiet", 1), (f"{api.queue}-busy", BUSY)):
        api.put(f"/queues/{queue}", {"max_running_per_group": 1})
        fill(api, queue, busy=busy)
        wait_for_strict_admissions(api, db, queue)
        pages[busy] = loop.run(pages_per_decision(broker_services, lane_of(db, queue)))
    assert pages[BUSY] <= 2 * pages[1] + 10, pages


async def pages_per_decision(broker_services: Broker, lane: int) -> int:
    counter = PageCounter(broker_services.infra.db)
    await concurrency.group_usage(counter, lane, ["busy", "other-1"], strict=True)
    params = [concurrency.PendingParams(group, 1) for group in ("busy", "other-1")]
    await concurrency.next_pending(counter, lane, params, 1000)
    await concurrency.pending_groups(counter, lane, "", 1000)
    return counter.pages
