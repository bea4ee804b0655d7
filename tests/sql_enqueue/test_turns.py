"""Queues with turns, and groups at rest: a job that came by SQL waits for its turn like the others."""

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Session


def stored_state(owner: Session, group: str | None = None) -> str:
    """Before anybody has decided on its turn."""
    with owner.transaction("ROLLBACK"):
        state: str = owner.value("SELECT state FROM jobs WHERE id = $1", owner.enqueue(group_key=group))
    return state


def put_to_rest(api: Api, db: TestDatabase, group: str) -> None:
    api.enqueue(group=group)
    api.fail(api.claim_one(wait_seconds=20), scope="group", retry_after_seconds=600)
    wait_until(lambda: db.value("SELECT count(*) FROM rests WHERE group_key = $1", group) == 1)


@pytest.mark.parametrize(
    ("config", "group", "state"),
    [
        ({}, None, "ready"),
        ({}, "g", "ready"),
        ({"max_running": 1, "fair": False}, "g", "ready"),
        ({"max_running_per_group": 1}, None, "ready"),
        ({"max_running_per_group": 1}, "g", "parked"),
        ({"max_running_per_group": 1, "lanes": 16}, "g", "parked"),
        ({"fair": True}, None, "parked"),
        ({"fair": True}, "g", "parked"),
    ],
    ids=str,
)
def test_who_waits_for_a_turn(
    shop: Session, owner: Session, api: Api, config: Json, group: str | None, state: str
) -> None:
    api.configure(**config)
    assert stored_state(owner, group) == state
    job_id = shop.enqueue(group_key=group)
    assert api.job(job_id)["state"] == "ready"
    assert api.claim_one(wait_seconds=20)["id"] == job_id


def test_a_job_for_later_waits_for_its_time_and_then_for_its_turn(shop: Session, api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    later, now = shop.enqueue(group_key="g", delay_seconds=600), shop.enqueue(group_key="g")
    held = api.claim_one(wait_seconds=20)
    assert held["id"] == now
    db.age(later, 600)
    wait_until(lambda: db.value("SELECT state FROM jobs WHERE id = $1", later) == "parked")
    api.complete(held)
    assert api.claim_one(wait_seconds=20)["id"] == later


def test_a_strict_group_keeps_its_order_whichever_way_its_jobs_come(shop: Session, api: Api) -> None:
    api.configure(max_running_per_group=1, lanes=4)
    ids = [job_id for _ in range(3) for job_id in (shop.enqueue(group_key="g"), api.enqueue(group="g")["id"])]
    done = []
    for _ in ids:
        held = api.claim_one(wait_seconds=20)
        done.append(held["id"])
        api.complete(held)
    assert done == ids


def test_a_group_at_rest_rests_for_both_ways(shop: Session, owner: Session, api: Api, db: TestDatabase) -> None:
    api.configure()
    put_to_rest(api, db, "tired")
    assert (stored_state(owner, "tired"), stored_state(owner, "awake"), stored_state(owner)) == (
        "parked",
        "ready",
        "ready",
    )
    shop.enqueue(group_key="tired")
    awake = shop.enqueue(group_key="awake")
    assert [job["id"] for job in api.claim(max_jobs=10)["jobs"]] == [awake]


def test_a_limit_on_a_queue_counts_jobs_that_came_by_sql(shop: Session, api: Api) -> None:
    api.configure(max_running=1)
    first, second = shop.enqueue(), shop.enqueue()
    held = api.claim_one()
    assert (held["id"], api.claim()["jobs"]) == (first, [])
    api.complete(held)
    assert api.claim_one(wait_seconds=20)["id"] == second
