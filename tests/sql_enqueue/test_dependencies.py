"""depends_on: a job that came by SQL waits for others, and others wait for it."""

import pytest

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background
from tests.sql_enqueue.conftest import Session, without_times

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore' AND wait_event_type = 'Lock'"
KEPT = "SELECT keep_until - finished_at AS kept, archive, attempt, deliveries FROM finished_jobs WHERE id = $1"


def ended(api: Api, how: str) -> str:
    """A job that has ended like this."""
    job = api.enqueue()
    if how == "cancelled":
        api.cancel(job)
    elif how == "dead":
        api.fail(api.claim_one(), retryable=False)
    else:
        api.complete(api.claim_one(), result=17)
    assert api.job(job["id"])["state"] == how
    return str(job["id"])


def told(job: Json) -> tuple[str, str | None]:
    return job["state"], job.get("state_reason")


def test_a_job_waits_for_its_parent_and_gets_its_result(shop: Session, api: Api) -> None:
    parent = api.enqueue()["id"]
    child = shop.enqueue(depends_on=[parent])
    assert told(api.job(child)) == ("blocked", "waiting_for_jobs")
    assert api.counts() == {"ready": 1, "blocked": 1}
    api.complete(api.claim_one(), result=17)
    claimed = api.claim_one(wait_seconds=20, parent_results=True)
    assert claimed["id"] == child
    assert [(one["job_id"], one["result"]) for one in claimed["parent_results"]] == [(parent, 17)]


def test_a_whole_chain_of_one_transaction(shop: Session, api: Api) -> None:
    with shop.transaction():
        first = shop.enqueue()
        second = shop.enqueue(depends_on=[first])
        third = shop.enqueue(depends_on=[first, second, first])
    assert api.job(third)["depends_on"] == [first, second]
    for job_id in (first, second, third):
        held = api.claim_one(wait_seconds=20)
        assert held["id"] == job_id
        api.complete(held)


def test_parents_in_many_lanes_and_queues(shop: Session, api: Api) -> None:
    api.configure(lanes=16)
    parents = [shop.enqueue(queue=queue) for queue in (api.queue, f"{api.queue}-2") for _ in range(8)]
    child = shop.enqueue(queue=f"{api.queue}-3", depends_on=parents)
    for queue in (api.queue, f"{api.queue}-2"):
        for held in api.claim(queues=[queue], max_jobs=8)["jobs"]:
            assert api.job(child)["state"] == "blocked"
            api.complete(held)
    assert api.claim_one(queues=[f"{api.queue}-3"], wait_seconds=20)["id"] == child


def test_a_job_over_http_waits_for_one_that_came_by_sql(shop: Session, api: Api) -> None:
    parent = shop.enqueue()
    child = api.enqueue(depends_on=[parent])
    assert child["state"] == "blocked"
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["id"] == child["id"]


@pytest.mark.parametrize("policy", [None, "cancel", "run"])
@pytest.mark.parametrize("how", ["completed", "dead", "cancelled"])
def test_a_parent_that_has_ended_already(
    shop: Session, api: Api, db: TestDatabase, how: str, policy: str | None
) -> None:
    api.configure(retention={"finished_seconds": 5000, "mode": "detach"})
    parent = ended(api, how)
    before = api.counts()
    mine = api.job(
        shop.enqueue(depends_on=[parent], on_parent_failure=policy, unique_key="mine", group_key="g", tags=["a"])
    )
    after = api.counts()
    same: Json = {"depends_on": [parent], "unique": {"key": "theirs"}, "group": "g", "tags": ["a"]}
    theirs = api.enqueue(**same | ({"on_parent_failure": policy} if policy else {}))
    assert told(mine) == (
        ("ready", None) if how == "completed" or policy == "run" else ("cancelled", "dependency_failed")
    )
    unlike = {"unique_key", "finished_at"}
    assert {k: v for k, v in without_times(mine).items() if k not in unlike} == {
        k: v for k, v in without_times(api.job(theirs["id"])).items() if k not in unlike
    }
    assert {state: count - before.get(state, 0) for state, count in after.items() if count != before.get(state, 0)} == {
        mine["state"]: 1
    }
    assert [dict(row) for row in db.rows(KEPT, mine["id"])] == [dict(row) for row in db.rows(KEPT, theirs["id"])]


def test_one_that_is_cancelled_is_kept_as_long_as_the_settings_say_by_default(
    shop: Session, api: Api, db: TestDatabase
) -> None:
    parent = ended(api, "dead")
    mine, theirs = shop.enqueue(depends_on=[parent]), api.enqueue(depends_on=[parent])["id"]
    assert dict(db.row(KEPT, mine)) == dict(db.row(KEPT, theirs))


def test_one_of_several_has_ended(shop: Session, api: Api) -> None:
    done, living = ended(api, "completed"), api.enqueue()["id"]
    child = shop.enqueue(depends_on=[done, living])
    assert (api.job(child)["state"], api.job(child)["depends_on"]) == ("blocked", [done, living])
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["id"] == child


@pytest.mark.parametrize(("policy", "state"), [("cancel", "cancelled"), ("run", "ready")])
def test_a_parent_that_fails_later(shop: Session, api: Api, policy: str, state: str) -> None:
    api.enqueue()
    held = api.claim_one()
    child = shop.enqueue(depends_on=[held["id"]], on_parent_failure=policy)
    api.fail(held, retryable=False)
    wait_until(lambda: api.job(child)["state"] == state)


def test_a_parent_cannot_end_before_its_child_is_stored(
    shop: Session, api: Api, db: TestDatabase, background: Background
) -> None:
    api.enqueue()
    held = api.claim_one()
    with shop.transaction():
        child = shop.enqueue(depends_on=[held["id"]])
        ends = background.submit(api.complete, held)
        wait_until(lambda: db.value(WAITING) >= 1)
    assert ends.result(20)["state"] == "completed"
    assert api.claim_one(wait_seconds=20)["id"] == child


def test_with_a_rollback_the_parent_does_not_know_the_child(shop: Session, api: Api, db: TestDatabase) -> None:
    parent = api.enqueue()["id"]
    with shop.transaction("ROLLBACK"):
        child = shop.enqueue(depends_on=[parent])
    assert db.value("SELECT count(*) FROM dependents WHERE child = $1", child) == 0
    assert api.complete(api.claim_one())["state"] == "completed"
