"""fail with `scope: group`: nobody of the group begins for a while."""

import pytest

from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire
from tests.limits.cooling import HOUR, Cooling, rest_over, resting


def test_nobody_of_the_group_is_handed_out(cool: Cooling) -> None:
    assert cool.to_response["state"] == "scheduled"
    assert cool.hands_out_nothing()
    assert cool.api.counts()["ready"] == 3


def test_jobs_of_other_groups_and_of_none_are(cool: Cooling) -> None:
    others = [cool.api.enqueue(group="b")["id"], cool.api.enqueue()["id"]]
    taken = [cool.api.claim_one(wait_seconds=20)["id"] for _ in others]
    assert sorted(taken) == sorted(others)


def test_those_that_come_meanwhile_wait_too(cool: Cooling, db: TestDatabase) -> None:
    assert cool.api.enqueue(group="a")["state"] == "ready"
    assert cool.hands_out_nothing()
    rest_over(db)
    assert cool.all_done()


def test_those_that_come_due_or_come_back_meanwhile_wait_too(api: Api, db: TestDatabase, expire: Expire) -> None:
    delayed = api.enqueue(group="a", delay_seconds=HOUR)
    dead = api.dead(group="a")
    jobs = api.enqueue_many(4, group="a")
    first, released, lost, late = api.claim(max_jobs=4)["jobs"]
    api.fail(first, scope="group", retry_after_seconds=HOUR)
    db.age(delayed["id"], HOUR)
    api.replay(dead)
    api.release(released)
    api.fail(late, retry_after_seconds=0)
    expire(lost)
    wait_until(lambda: api.counts() == {"ready": 5, "scheduled": 1})
    assert api.claim(max_jobs=10)["jobs"] == []
    rest_over(db)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    done = 1
    while done < 6:
        taken = api.claim(max_jobs=10, wait_seconds=20)["jobs"]
        done += len(taken)
    assert len(jobs) + 2 == done


def test_the_group_of_the_same_name_in_another_queue_goes_on(api: Api) -> None:
    cool = Cooling(api)
    other = api.enqueue(group="a", queue=f"{api.queue}-2")
    assert api.claim_one(queues=[f"{api.queue}-2"])["id"] == other["id"]
    assert cool.hands_out_nothing()


def test_who_runs_may_go_on(api: Api) -> None:
    jobs = api.enqueue_many(3, group="a")
    first, second = api.claim(max_jobs=2)["jobs"]
    api.fail(first, scope="group", retry_after_seconds=HOUR)
    assert api.heartbeat_one(second)["status"] == "extended"
    assert api.complete(second)["state"] == "completed"
    assert api.claim()["jobs"] == []
    assert api.job(jobs[2])["state"] == "ready"


def test_they_can_be_cancelled_and_changed(cool: Cooling, db: TestDatabase) -> None:
    assert cool.api.cancel({"id": cool.jobs[1]})["state"] == "cancelled"
    assert cool.api.change({"id": cool.jobs[2]}, payload=1)["state"] == "ready"
    rest_over(db)
    assert cool.all_done()


@pytest.mark.parametrize("fields", [{}, {"retryable": False}], ids=["again", "not again"])
def test_without_a_time_it_is_as_long_as_the_jobs_own_delay(api: Api, db: TestDatabase, fields: Json) -> None:
    api.enqueue_many(3, group="a", retry={"base_seconds": HOUR, "jitter": 0})
    told = api.fail(api.claim_one(), scope="group", **fields)
    if fields:
        wait_until(lambda: api.claim(max_jobs=10)["jobs"])
    else:
        assert api.claim(max_jobs=10)["jobs"] == []
        assert db.value("SELECT until FROM rests ORDER BY until DESC LIMIT 1") == when(told["run_at"])


def test_a_job_without_a_group_speaks_for_itself(api: Api) -> None:
    api.enqueue_many(2)
    api.fail(api.claim_one(), scope="group", retry_after_seconds=HOUR)
    api.claim_one()


def test_the_longest_rest_that_was_asked_for_counts(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(5, group="a")
    held = api.claim(max_jobs=3)["jobs"]
    longest = [
        api.fail(job, scope="group", retry_after_seconds=seconds)
        for job, seconds in zip(held, (60, HOUR, 1), strict=True)
    ][1]
    assert db.value("SELECT max(until) FROM rests WHERE group_key = 'a' AND until > now()") == when(longest["run_at"])


def test_several_of_one_call(api: Api, db: TestDatabase) -> None:
    for group in "ab":
        api.enqueue_many(3, group=group)
    held = api.claim(max_jobs=6)["jobs"]
    items = [
        {
            "job_id": job["id"],
            "lease_token": job["lease_token"],
            "outcome": "fail",
            "error": {"message": "enough"},
            "scope": "group",
            "retry_after_seconds": HOUR,
        }
        for job in held
    ]
    assert api.settle(*items[:2], *items[3:5])["settled"] == 4
    assert resting(db, api) == 2
    assert api.settle(items[0])["results"][0]["status"] == "already_settled"


def test_a_call_that_could_not_be_answered_is_repeated_and_the_group_rests(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(3, group="a")
    held = api.claim_one()
    lane = db.value("SELECT lane FROM jobs LIMIT 1")
    db.execute("INSERT INTO gates (lane) VALUES ($1) ON CONFLICT DO NOTHING", lane)
    with db.uncommitted("SELECT lane FROM gates WHERE lane = $1 FOR UPDATE", lane):
        assert api.fail(held, scope="group", retry_after_seconds=HOUR, status=503)["outcome"] == "not_done"
    assert api.fail(held, scope="group", retry_after_seconds=HOUR)["status"] == "settled"
    assert api.claim(max_jobs=10)["jobs"] == []
