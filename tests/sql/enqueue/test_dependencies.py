"""depends_on: a job enqueued by SQL waits for others, and others wait for it."""

import pytest

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background
from tests.sql.enqueue.conftest import Session, without_times

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore' AND wait_event_type = 'Lock'"
RETENTION = "SELECT keep_until - finished_at AS kept, archive, attempt, deliveries FROM finished_jobs WHERE id = $1"


def finished_job(api: Api, state: str) -> str:
    """A job in this final state."""
    job = api.enqueue()
    if state == "cancelled":
        api.cancel(job)
    elif state == "dead":
        api.fail(api.claim_one(), retryable=False)
    else:
        api.complete(api.claim_one(), result=17)
    assert api.job(job["id"])["state"] == state
    return str(job["id"])


def state_and_reason(job: Json) -> tuple[str, str | None]:
    return job["state"], job.get("state_reason")


def test_sql_child_waits_for_its_parent_and_gets_its_result(shop: Session, api: Api) -> None:
    parent = api.enqueue()["id"]
    child = shop.enqueue(depends_on=[parent])
    assert state_and_reason(api.job(child)) == ("blocked", "waiting_for_jobs")
    assert api.counts() == {"ready": 1, "blocked": 1}
    api.complete(api.claim_one(), result=17)
    claimed = api.claim_one(wait_seconds=20, parent_results=True)
    assert claimed["id"] == child
    assert [(parent_result["job_id"], parent_result["result"]) for parent_result in claimed["parent_results"]] == [
        (parent, 17)
    ]


def test_transaction_may_enqueue_a_chain_of_dependent_jobs(shop: Session, api: Api) -> None:
    with shop.transaction():
        first = shop.enqueue()
        second = shop.enqueue(depends_on=[first])
        third = shop.enqueue(depends_on=[first, second, first])
    assert api.job(third)["depends_on"] == [first, second]
    for job_id in (first, second, third):
        claimed = api.claim_one(wait_seconds=20)
        assert claimed["id"] == job_id
        api.complete(claimed)


def test_sql_child_may_have_parents_in_many_lanes_and_queues(shop: Session, api: Api) -> None:
    api.configure(lanes=16)
    parents = [shop.enqueue(queue=queue) for queue in (api.queue, f"{api.queue}-2") for _ in range(8)]
    child = shop.enqueue(queue=f"{api.queue}-3", depends_on=parents)
    for queue in (api.queue, f"{api.queue}-2"):
        for claimed in api.claim(queues=[queue], max_jobs=8)["jobs"]:
            assert api.job(child)["state"] == "blocked"
            api.complete(claimed)
    assert api.claim_one(queues=[f"{api.queue}-3"], wait_seconds=20)["id"] == child


def test_http_child_waits_for_a_sql_parent(shop: Session, api: Api) -> None:
    parent = shop.enqueue()
    child = api.enqueue(depends_on=[parent])
    assert child["state"] == "blocked"
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["id"] == child["id"]


@pytest.mark.parametrize("policy", [None, "cancel", "run"])
@pytest.mark.parametrize("state", ["completed", "dead", "cancelled"])
def test_sql_and_http_treat_a_finished_parent_alike(
    shop: Session, api: Api, db: TestDatabase, state: str, policy: str | None
) -> None:
    api.configure(retention={"finished_seconds": 5000, "mode": "detach"})
    parent = finished_job(api, state)
    before = api.counts()
    by_sql = api.job(
        shop.enqueue(depends_on=[parent], on_parent_failure=policy, unique_key="by sql", group_key="g", tags=["a"])
    )
    after = api.counts()
    same: Json = {"depends_on": [parent], "unique": {"key": "by http"}, "group": "g", "tags": ["a"]}
    by_http = api.enqueue(**same | ({"on_parent_failure": policy} if policy else {}))
    assert state_and_reason(by_sql) == (
        ("ready", None) if state == "completed" or policy == "run" else ("cancelled", "dependency_failed")
    )
    different = {"unique_key", "finished_at"}
    assert {k: v for k, v in without_times(by_sql).items() if k not in different} == {
        k: v for k, v in without_times(api.job(by_http["id"])).items() if k not in different
    }
    assert {state: count - before.get(state, 0) for state, count in after.items() if count != before.get(state, 0)} == {
        by_sql["state"]: 1
    }
    assert [dict(row) for row in db.rows(RETENTION, by_sql["id"])] == [
        dict(row) for row in db.rows(RETENTION, by_http["id"])
    ]


def test_sql_child_cancelled_on_enqueue_has_the_default_retention(shop: Session, api: Api, db: TestDatabase) -> None:
    parent = finished_job(api, "dead")
    by_sql, by_http = shop.enqueue(depends_on=[parent]), api.enqueue(depends_on=[parent])["id"]
    assert dict(db.row(RETENTION, by_sql)) == dict(db.row(RETENTION, by_http))


def test_sql_child_waits_only_for_live_parents(shop: Session, api: Api) -> None:
    done, live = finished_job(api, "completed"), api.enqueue()["id"]
    child = shop.enqueue(depends_on=[done, live])
    assert (api.job(child)["state"], api.job(child)["depends_on"]) == ("blocked", [done, live])
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["id"] == child


@pytest.mark.parametrize(("policy", "state"), [("cancel", "cancelled"), ("run", "ready")])
def test_policy_of_a_sql_child_applies_when_its_parent_fails(shop: Session, api: Api, policy: str, state: str) -> None:
    api.enqueue()
    claimed = api.claim_one()
    child = shop.enqueue(depends_on=[claimed["id"]], on_parent_failure=policy)
    api.fail(claimed, retryable=False)
    wait_until(lambda: api.job(child)["state"] == state)


def test_parent_cannot_finish_before_the_transaction_of_its_sql_child(
    shop: Session, api: Api, db: TestDatabase, background: Background
) -> None:
    api.enqueue()
    claimed = api.claim_one()
    with shop.transaction():
        child = shop.enqueue(depends_on=[claimed["id"]])
        completion = background.submit(api.complete, claimed)
        wait_until(lambda: db.value(WAITING) >= 1)
    assert completion.result(20)["state"] == "completed"
    assert api.claim_one(wait_seconds=20)["id"] == child


def test_rolled_back_sql_child_leaves_no_dependency(shop: Session, api: Api, db: TestDatabase) -> None:
    parent = api.enqueue()["id"]
    with shop.transaction("ROLLBACK"):
        child = shop.enqueue(depends_on=[parent])
    assert db.value("SELECT count(*) FROM dependents WHERE child_id = $1", child) == 0
    assert api.complete(api.claim_one())["state"] == "completed"
