"""Queues with turns, and groups at rest: a job that came by SQL waits for its turn like the others."""

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Session


def state(db: TestDatabase, shop: Session, group: str | None = None) -> str:
    """In which a job is stored, before anybody has decided on its turn."""
    with shop.transaction("ROLLBACK"):
        job_id = shop.enqueue(group_key=group)
        shop.execute("SET LOCAL lock_timeout = '1s'")
        stored: str = within(shop, db, job_id)
    return stored


def within(shop: Session, db: TestDatabase, job_id: str) -> str:
    """Counted as parked or ready: only the statistics of the transaction itself could tell; so the decision is asked for."""
    lane = db.value("SELECT longshore_lane($1)", job_id)
    return str(lane)


@pytest.mark.parametrize(
    ("config", "group", "parked"),
    [
        ({}, None, False),
        ({}, "g", False),
        ({"max_running": 1}, "g", False),
        ({"fair": False}, "g", False),
        ({"max_running_per_group": 1}, None, False),
        ({"max_running_per_group": 1}, "g", True),
        ({"fair": True}, None, True),
        ({"fair": True}, "g", True),
    ],
)
def test_who_waits_for_a_turn(shop: Session, api: Api, db: TestDatabase, config: Json, group: str | None, parked: bool) -> None:
    api.configure(**config)
    home = "SELECT longshore_parks(queues, id << 8, $2) FROM queues WHERE name = $1"
    assert db.value(home, api.queue, group) is parked
    job_id = shop.enqueue(group_key=group)
    assert api.claim_one(wait_seconds=20)["id"] == job_id
    assert (db.value("SELECT turn FROM jobs WHERE id = $1", job_id) is not None) is parked
