"""Ten thousand jobs of one busy group in front of the others do not make it dearer to claim those."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from asyncpg import Record

from app.broker import Broker
from app.concurrency import store as limits
from app.db.pool import Executor
from app.leases import store
from app.leases.store import ClaimParams, LanePolicy
from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import Loop, TestDatabase

OTHERS = 60
BUSY = 10_000
ASKED = ClaimParams(
    worker_id="w",
    secret="s",
    lease_seconds=None,
    default_lease_seconds=60,
    max_bytes=2**30,
    at_least_one=True,
    job_types=None,
)


class Watched:
    """Runs statements under EXPLAIN ANALYZE, with the product's own settings, and adds up the pages they touch."""

    def __init__(self, on: Executor) -> None:
        self._on = on
        self.pages = 0
        self.answered = 0

    async def rows(self, sql: str, *args: object) -> list[Record]:
        plan: Json = json.loads(await self._on.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args))[0][
            "Plan"
        ]
        self.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.answered += round(plan["Actual Rows"])
        return []

    async def row(self, sql: str, *args: object) -> Record | None:
        raise NotImplementedError

    async def value(self, sql: str, *args: object) -> Any:
        raise NotImplementedError


def fill(api: Api, queue: str, *, busy: int) -> None:
    """The busy group came first."""
    for first in range(0, busy, 1000):
        api.enqueue_many(min(1000, busy - first), queue=queue, group="busy", job_type="busy")
    api.batch(*[{"queue": queue, "group": f"other-{number}", "job_type": "other"} for number in range(OTHERS)])


def in_turn(db: TestDatabase, queue: str, job_type: str) -> int:
    """How many of them a claim can take."""
    there = "SELECT count(*) FROM jobs JOIN queues ON lane / 256 = queues.id WHERE name = $1 AND state = 'ready' AND job_type = $2"
    count: int = db.value(there, queue, job_type)
    return count


def lane_of(db: TestDatabase, queue: str) -> int:
    lane: int = db.value("SELECT id * 256 FROM queues WHERE name = $1", queue)
    return lane


def strict(api: Api, db: TestDatabase, queue: str) -> None:
    wait_until(lambda: (in_turn(db, queue, "busy"), in_turn(db, queue, "other")) in [(0, OTHERS), (1, OTHERS)])


def fair(api: Api, db: TestDatabase, queue: str) -> None:
    wait_until(lambda: in_turn(db, queue, "busy") > 0 and in_turn(db, queue, "other") == OTHERS)


def vacuumed(db: TestDatabase) -> bool:
    """Whatever a chore was just looking at stays until the next time. With its indexes, which vacuum leaves alone for few dead rows in a
    table that other tests have made large."""
    db.execute("VACUUM (INDEX_CLEANUP ON) jobs")
    return bool(db.value("SELECT n_dead_tup < 100 FROM pg_stat_user_tables WHERE relname = 'jobs'"))


def resting(api: Api, db: TestDatabase, queue: str) -> None:
    """Those that were ready before are still in the index, as dead entries, until it is vacuumed."""
    held = api.claim(queues=[queue], job_types=["busy"])["jobs"]
    for job in held:
        api.fail(job, scope="group", retry_after_seconds=3600)
    wait_until(lambda: in_turn(db, queue, "busy") == 0, seconds=60)
    wait_until(lambda: vacuumed(db))


@pytest.mark.parametrize(
    ("config", "arrange"),
    [({"max_running_per_group": 1}, strict), ({"fair": True}, fair), ({}, resting)],
    ids=["strict", "fair", "at rest"],
)
def test_claims_of_others_cost_the_same(
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
        pages[busy] = loop.run(claimed(broker_services, lane_of(db, queue), fair="fair" in config))
    assert pages[BUSY] <= 2 * pages[1] + 5, pages


async def claimed(broker_services: Broker, lane: int, *, fair: bool) -> float:
    """Pages touched per claimed job, ten at a time."""
    await broker_services.infra.versions.run_once()
    watched = Watched(broker_services.infra.db)
    for _ in range(OTHERS // 10):
        await store.claim(
            watched,
            lane,
            10,
            ASKED,
            LanePolicy(broker_services.queues.held_groups(lane), in_turn=fair),
            broker_services.infra.now(),
        )
    assert watched.answered == OTHERS
    return watched.pages / OTHERS


def test_deciding_whose_turn_it_is_costs_the_same(
    api: Api, db: TestDatabase, broker_services: Broker, loop: Loop
) -> None:
    pages = {}
    for queue, busy in ((f"{api.queue}-quiet", 1), (f"{api.queue}-busy", BUSY)):
        api.put(f"/queues/{queue}", {"max_running_per_group": 1})
        fill(api, queue, busy=busy)
        strict(api, db, queue)
        pages[busy] = loop.run(decided(broker_services, lane_of(db, queue)))
    assert pages[BUSY] <= 2 * pages[1] + 10, pages


async def decided(broker_services: Broker, lane: int) -> int:
    watched = Watched(broker_services.infra.db)
    await limits.group_usage(watched, lane, ["busy", "other-1"], strict=True)
    await limits.next_waiting(watched, lane, [("busy", 1), ("other-1", 1)], 1000)
    await limits.waiting_groups(watched, lane, "", 1000)
    return watched.pages
