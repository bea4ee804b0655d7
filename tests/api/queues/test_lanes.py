"""The number of lanes can be increased at any time, but reduced only while the queue has no jobs.

A group is always in one lane, whatever the number of lanes.
"""

from collections.abc import Callable

import pytest

from app.broker import Broker
from tests.api_client import Api, Json
from tests.database import Loop, TestDatabase

UndeleteQueues = Callable[[], None]


@pytest.fixture
def undelete_queues(broker_services: Broker, loop: Loop) -> UndeleteQueues:
    """Runs the maintenance service that reopens lanes and spreads groups."""
    return lambda: loop.run(broker_services.queue_service.repair())


def group_lanes(db: TestDatabase, api: Api) -> int:
    """The number of lanes over which groups are spread."""
    lanes: int = db.value("SELECT group_lanes FROM queues WHERE name = $1", api.queue)
    return lanes


def pointers(problem: Json) -> list[str]:
    return [fault["pointer"] for fault in problem["errors"]]


def test_lanes_can_be_increased_and_a_put_without_lanes_keeps_them(api: Api) -> None:
    assert api.configure(lanes=4)["lanes"] == 4
    assert api.configure()["lanes"] == 4
    assert api.patch(f"/queues/{api.queue}", {"lanes": 256})["lanes"] == 256


@pytest.mark.parametrize("state", ["ready", "running", "dead"])
def test_lanes_of_a_queue_with_jobs_cannot_be_reduced(api: Api, state: str) -> None:
    api.configure(lanes=4)
    api.dead_letter() if state == "dead" else api.enqueue()
    if state == "running":
        api.claim_one()
    for problem in (api.configure(lanes=3, status=422), api.patch(f"/queues/{api.queue}", {"lanes": 3}, status=422)):
        assert pointers(problem) == ["/lanes"]
    assert api.get(f"/queues/{api.queue}")["lanes"] == 4


def test_lanes_of_an_empty_queue_can_be_reduced(api: Api, db: TestDatabase) -> None:
    api.configure(lanes=4)
    api.enqueue(group="a")
    api.complete(api.claim_one())
    assert (api.configure(lanes=2)["lanes"], group_lanes(db, api)) == (2, 2)
    assert (api.patch(f"/queues/{api.queue}", {"lanes": 1})["lanes"], group_lanes(db, api)) == (1, 1)


@pytest.mark.parametrize("limit", [{"max_running": 5}, {"rate": {"limit": 5, "per_seconds": 1}}], ids=str)
def test_queue_wide_limit_requires_one_lane(api: Api, limit: Json) -> None:
    """The member that is sent second is rejected."""
    (name,) = limit
    api.configure(lanes=2)
    assert pointers(api.configure(**limit, status=422)) == [f"/{name}"]
    assert pointers(api.patch(f"/queues/{api.queue}", limit, status=422)) == [f"/{name}"]
    api.configure(**limit, lanes=1)
    assert pointers(api.patch(f"/queues/{api.queue}", {"lanes": 2}, status=422)) == ["/lanes"]
    assert api.configure(lanes=2)["lanes"] == 2


def test_groups_of_an_empty_queue_use_new_lanes_at_once(api: Api, db: TestDatabase) -> None:
    api.configure()
    assert group_lanes(db, api) == 1
    api.configure(lanes=4)
    assert group_lanes(db, api) == 4


@pytest.mark.parametrize("state", ["ready", "dead"])
def test_groups_use_new_lanes_once_no_job_of_any_group_is_left(
    api: Api, db: TestDatabase, undelete_queues: UndeleteQueues, state: str
) -> None:
    job = api.dead_letter(group="a") if state == "dead" else api.enqueue(group="a")
    api.configure(lanes=4)
    undelete_queues()
    assert group_lanes(db, api) == 1
    if state == "dead":
        api.post("/dead-letters/purge", {"ids": [job["id"]], "dry_run": False})
    else:
        api.cancel(job)
    api.enqueue_many(3)
    undelete_queues()
    assert group_lanes(db, api) == 4


def test_removed_lane_with_a_job_is_reopened(api: Api, db: TestDatabase, undelete_queues: UndeleteQueues) -> None:
    api.configure(lanes=256)
    api.enqueue_many(5)
    highest = db.value("SELECT max(lane) % 256 + 1 FROM jobs")
    # As a transaction that could not see the jobs yet would remove the lanes.
    db.execute("UPDATE queues SET lanes = 1, group_lanes = 1 WHERE name = $1", api.queue)
    undelete_queues()
    assert api.get(f"/queues/{api.queue}")["lanes"] == highest
    undelete_queues()
    assert api.get(f"/queues/{api.queue}")["lanes"] == highest
