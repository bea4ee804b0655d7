"""Admission and cool-downs: a job enqueued by SQL waits for admission like every other job."""

import pytest

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session


def stored_state(owner_session: Session, group: str | None = None) -> str:
    """The stored state before the group scheduler decides on admission."""
    with owner_session.transaction("ROLLBACK"):
        state: str = owner_session.value("SELECT state FROM jobs WHERE id = $1", owner_session.enqueue(group_key=group))
    return state


def start_cooldown(api: Api, db: TestDatabase, group: str) -> None:
    api.enqueue(group=group)
    api.fail(api.claim_one(wait_seconds=20), scope="group", retry_after_seconds=600)
    wait_until(lambda: db.value("SELECT count(*) FROM group_cooldowns WHERE group_key = $1", group) == 1)


@pytest.mark.parametrize(
    ("config", "group", "state"),
    [
        ({}, None, "ready"),
        ({}, "g", "ready"),
        ({"max_running": 1, "fair": False}, "g", "ready"),
        ({"max_running_per_group": 1}, None, "ready"),
        ({"max_running_per_group": 1}, "g", "pending"),
        ({"max_running_per_group": 1, "lanes": 16}, "g", "pending"),
        ({"fair": True}, None, "pending"),
        ({"fair": True}, "g", "pending"),
    ],
    ids=str,
)
def test_sql_job_needs_admission_by_the_rules_of_its_queue(
    shop: Session, owner_session: Session, api: Api, config: Json, group: str | None, state: str
) -> None:
    api.configure(**config)
    assert stored_state(owner_session, group) == state
    job_id = shop.enqueue(group_key=group)
    assert api.job(job_id)["state"] == "ready"
    assert api.claim_one(wait_seconds=20)["id"] == job_id


def test_scheduled_sql_job_waits_for_its_time_then_for_admission(shop: Session, api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    later, now = shop.enqueue(group_key="g", delay_seconds=600), shop.enqueue(group_key="g")
    claimed = api.claim_one(wait_seconds=20)
    assert claimed["id"] == now
    db.age(later, 600)
    wait_until(lambda: db.value("SELECT state FROM jobs WHERE id = $1", later) == "pending")
    api.complete(claimed)
    assert api.claim_one(wait_seconds=20)["id"] == later


def test_strict_group_keeps_the_order_of_sql_and_http_jobs(shop: Session, api: Api) -> None:
    api.configure(max_running_per_group=1, lanes=4)
    ids = [job_id for _ in range(3) for job_id in (shop.enqueue(group_key="g"), api.enqueue(group="g")["id"])]
    done = []
    for _ in ids:
        claimed = api.claim_one(wait_seconds=20)
        done.append(claimed["id"])
        api.complete(claimed)
    assert done == ids


def test_cooling_down_group_holds_back_sql_jobs(
    shop: Session, owner_session: Session, api: Api, db: TestDatabase
) -> None:
    api.configure()
    start_cooldown(api, db, "cooling")
    assert (
        stored_state(owner_session, "cooling"),
        stored_state(owner_session, "active"),
        stored_state(owner_session),
    ) == (
        "pending",
        "ready",
        "ready",
    )
    shop.enqueue(group_key="cooling")
    active = shop.enqueue(group_key="active")
    assert [job["id"] for job in api.claim(max_jobs=10)["jobs"]] == [active]


def test_max_running_counts_sql_jobs(shop: Session, api: Api) -> None:
    api.configure(max_running=1)
    first, second = shop.enqueue(), shop.enqueue()
    claimed = api.claim_one()
    assert (claimed["id"], api.claim()["jobs"]) == (first, [])
    api.complete(claimed)
    assert api.claim_one(wait_seconds=20)["id"] == second
