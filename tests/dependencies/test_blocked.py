"""What may be done to a job while it waits for others; and how it is counted and listed."""

from tests.api import Api, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.dependencies.family import born, pair


def test_a_blocked_job_can_be_changed_and_stays_blocked(api: Api, db: TestDatabase) -> None:
    family = pair(api)
    change = {
        "priority": 5,
        "payload": [1],
        "run_at": db.instant(3600),
        "max_attempts": 2,
        "tags": ["t"],
        "metadata": {"a": 1},
    }
    changed = api.patch(f"/jobs/{family.ids['child']}", change)
    assert (changed["state"], changed["state_reason"]) == ("blocked", "waiting_for_jobs")
    assert {name: changed[name] for name in change if name != "run_at"} == {
        name: change[name] for name in change if name != "run_at"
    }
    assert when(changed["run_at"]) == when(str(change["run_at"]))
    assert api.counts() == {"ready": 1, "blocked": 1}
    family.complete("parent")
    family.become(child="scheduled")


def test_a_blocked_job_that_was_put_off_can_be_hurried_again(api: Api, db: TestDatabase) -> None:
    family = pair(api, delay_seconds=3600)
    assert api.patch(f"/jobs/{family.ids['child']}", {"run_at": db.instant(-5)})["state"] == "blocked"
    family.complete("parent", "child")


def test_a_blocked_job_cannot_be_run_now(api: Api) -> None:
    family = pair(api)
    problem = api.post(f"/jobs/{family.ids['child']}/run-now", status=409)
    assert (problem["code"], problem["state"]) == ("wrong_state", "blocked")


def test_a_blocked_job_can_be_cancelled(api: Api) -> None:
    family = born(api, {"parent": [], "child": ["parent"], "grandchild": ["child"]})
    cancelled = family.cancel("child")
    assert (cancelled["state"], cancelled["state_reason"]) == ("cancelled", "cancelled_by_user")
    family.become(grandchild="cancelled")
    family.complete("parent")
    assert family.states() == {"parent": "completed", "child": "cancelled", "grandchild": "cancelled"}
    assert api.counts() == {"completed": 1, "cancelled": 2}


def test_blocked_jobs_are_listed_and_cancelled_by_filter(api: Api) -> None:
    family = pair(api)
    (listed,) = api.get("/jobs", queue=api.queue, state="blocked")["items"]
    assert listed == family.job("child")
    answer = api.post("/jobs/cancel", {"filter": {"queue": api.queue, "state": "blocked"}})
    assert (answer["matched"], answer["cancelled"]) == (1, 1)
    assert family.states() == {"parent": "ready", "child": "cancelled"}


def test_blocked_jobs_can_be_purged(api: Api) -> None:
    family = pair(api)
    assert api.post(f"/queues/{api.queue}/purge", {"states": ["blocked"], "dry_run": False})["purged"] == 1
    api.get(f"/jobs/{family.ids['child']}", status=404)
    family.complete("parent")
    assert api.counts() == {"completed": 1}


def test_counts_are_exact_all_the_way(api: Api) -> None:
    family = born(api, {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["c"], "e": ["a"]}, e={"delay_seconds": 3600})
    assert api.counts() == {"ready": 1, "blocked": 4}
    family.complete("a")
    wait_until(lambda: api.counts() == {"completed": 1, "ready": 1, "blocked": 2, "scheduled": 1})
    family.cancel("e")
    family.complete("b")
    wait_until(lambda: api.counts() == {"completed": 2, "ready": 1, "blocked": 1, "cancelled": 1})
    family.die("c")
    wait_until(lambda: api.counts() == {"completed": 2, "dead": 1, "cancelled": 2})


def test_nothing_is_left_of_a_family_that_has_ended(api: Api, db: TestDatabase) -> None:
    family = born(api, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    family.complete("a", "b")
    family.die("c")
    family.become(d="cancelled")
    ids = list(family.ids.values())
    wait_until(lambda: db.value("SELECT count(*) FROM endings WHERE id = ANY($1::uuid[])", ids) == 0)
    assert db.value("SELECT count(*) FROM dependents WHERE parent = ANY($1::uuid[])", ids) == 0
