"""Lanes of a queue can be more; fewer only when no job is left in it. A group is in one lane only, whatever happens to the others."""

from collections.abc import Callable

import pytest

from app.broker import Broker
from tests.api import Api, Json
from tests.database import Loop, TestDatabase

Chore = Callable[[], None]


@pytest.fixture
def service_(broker_services: Broker, loop: Loop) -> Chore:
    """What sets queues right, run now."""
    return lambda: loop.run(broker_services.queue_service.revive_used())


def group_lanes(db: TestDatabase, api: Api) -> int:
    """Among how many lanes groups are spread."""
    lanes: int = db.value("SELECT group_lanes FROM queues WHERE name = $1", api.queue)
    return lanes


def pointers(answer: Json) -> list[str]:
    return [fault["pointer"] for fault in answer["errors"]]


def test_lanes_can_be_raised_and_a_put_without_them_keeps_them(api: Api) -> None:
    assert api.configure(lanes=4)["lanes"] == 4
    assert api.configure()["lanes"] == 4
    assert api.patch(f"/queues/{api.queue}", {"lanes": 256})["lanes"] == 256


@pytest.mark.parametrize("state", ["ready", "running", "dead"])
def test_lanes_with_jobs_cannot_be_fewer(api: Api, state: str) -> None:
    api.configure(lanes=4)
    api.dead() if state == "dead" else api.enqueue()
    if state == "running":
        api.claim_one()
    for refused in (api.configure(lanes=3, status=422), api.patch(f"/queues/{api.queue}", {"lanes": 3}, status=422)):
        assert pointers(refused) == ["/lanes"]
    assert api.get(f"/queues/{api.queue}")["lanes"] == 4


def test_lanes_of_an_empty_queue_can_be_fewer(api: Api, db: TestDatabase) -> None:
    api.configure(lanes=4)
    api.enqueue(group="a")
    api.complete(api.claim_one())
    assert (api.configure(lanes=2)["lanes"], group_lanes(db, api)) == (2, 2)
    assert (api.patch(f"/queues/{api.queue}", {"lanes": 1})["lanes"], group_lanes(db, api)) == (1, 1)


@pytest.mark.parametrize("limit", [{"max_running": 5}, {"rate": {"limit": 5, "per_seconds": 1}}], ids=str)
def test_a_limit_of_the_whole_queue_needs_one_lane(api: Api, limit: Json) -> None:
    """Whichever comes second is the one that is refused."""
    (name,) = limit
    api.configure(lanes=2)
    assert pointers(api.configure(**limit, status=422)) == [f"/{name}"]
    assert pointers(api.patch(f"/queues/{api.queue}", limit, status=422)) == [f"/{name}"]
    api.configure(**limit, lanes=1)
    assert pointers(api.patch(f"/queues/{api.queue}", {"lanes": 2}, status=422)) == ["/lanes"]
    assert api.configure(lanes=2)["lanes"] == 2


def test_groups_of_an_empty_queue_are_spread_among_all_lanes_at_once(api: Api, db: TestDatabase) -> None:
    api.configure()
    assert group_lanes(db, api) == 1
    api.configure(lanes=4)
    assert group_lanes(db, api) == 4


@pytest.mark.parametrize("state", ["ready", "dead"])
def test_groups_follow_the_lanes_when_no_job_of_a_group_is_left(
    api: Api, db: TestDatabase, service_: Chore, state: str
) -> None:
    job = api.dead(group="a") if state == "dead" else api.enqueue(group="a")
    api.configure(lanes=4)
    service_()
    assert group_lanes(db, api) == 1
    if state == "dead":
        api.post("/dead-letters/purge", {"ids": [job["id"]], "dry_run": False})
    else:
        api.cancel(job)
    api.enqueue_many(3)
    service_()
    assert group_lanes(db, api) == 4


def test_a_lane_that_was_closed_over_a_job_is_opened_again(api: Api, db: TestDatabase, service_: Chore) -> None:
    api.configure(lanes=256)
    api.enqueue_many(5)
    highest = db.value("SELECT max(lane) % 256 + 1 FROM jobs")
    db.execute(
        "UPDATE queues SET lanes = 1, group_lanes = 1 WHERE name = $1", api.queue
    )  # by somebody who could not see the jobs yet
    service_()
    assert api.get(f"/queues/{api.queue}")["lanes"] == highest
    service_()
    assert api.get(f"/queues/{api.queue}")["lanes"] == highest
