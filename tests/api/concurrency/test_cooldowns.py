"""Cool-downs: after a failure with `scope: group`, no job of the group starts for a while."""

import pytest

from tests.api.concurrency.conftest import Expire
from tests.api.concurrency.cooling_group import HOUR, CoolingGroup, count_cooldowns, end_cooldowns
from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase


def test_no_job_of_a_cooling_group_is_delivered(cooling_group: CoolingGroup) -> None:
    assert cooling_group.response["state"] == "scheduled"
    assert cooling_group.delivers_nothing()
    assert cooling_group.api.counts()["ready"] == 3


def test_jobs_of_other_groups_and_without_group_are_delivered_during_a_cooldown(cooling_group: CoolingGroup) -> None:
    others = [cooling_group.api.enqueue(group="b")["id"], cooling_group.api.enqueue()["id"]]
    claimed = [cooling_group.api.claim_one(wait_seconds=20)["id"] for _ in others]
    assert sorted(claimed) == sorted(others)


def test_jobs_enqueued_during_a_cooldown_wait(cooling_group: CoolingGroup, db: TestDatabase) -> None:
    assert cooling_group.api.enqueue(group="a")["state"] == "ready"
    assert cooling_group.delivers_nothing()
    end_cooldowns(db)
    assert cooling_group.complete_all()


def test_jobs_that_become_due_or_are_requeued_during_a_cooldown_wait(
    api: Api, db: TestDatabase, expire: Expire
) -> None:
    delayed = api.enqueue(group="a", delay_seconds=HOUR)
    dead = api.dead_letter(group="a")
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
    end_cooldowns(db)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    done = 1
    while done < 6:
        claimed = api.claim(max_jobs=10, wait_seconds=20)["jobs"]
        done += len(claimed)
    assert len(jobs) + 2 == done


def test_cooldown_does_not_affect_the_same_group_of_another_queue(api: Api) -> None:
    cooling_group = CoolingGroup(api)
    other = api.enqueue(group="a", queue=f"{api.queue}-2")
    assert api.claim_one(queues=[f"{api.queue}-2"])["id"] == other["id"]
    assert cooling_group.delivers_nothing()


def test_running_jobs_of_a_cooling_group_continue(api: Api) -> None:
    jobs = api.enqueue_many(3, group="a")
    first, second = api.claim(max_jobs=2)["jobs"]
    api.fail(first, scope="group", retry_after_seconds=HOUR)
    assert api.heartbeat_one(second)["status"] == "extended"
    assert api.complete(second)["state"] == "completed"
    assert api.claim()["jobs"] == []
    assert api.job(jobs[2])["state"] == "ready"


def test_waiting_jobs_of_a_cooling_group_can_be_cancelled_and_changed(
    cooling_group: CoolingGroup, db: TestDatabase
) -> None:
    assert cooling_group.api.cancel({"id": cooling_group.jobs[1]})["state"] == "cancelled"
    assert cooling_group.api.change({"id": cooling_group.jobs[2]}, payload=1)["state"] == "ready"
    end_cooldowns(db)
    assert cooling_group.complete_all()


@pytest.mark.parametrize("fields", [{}, {"retryable": False}], ids=["with retry", "without retry"])
def test_cooldown_without_retry_after_lasts_as_long_as_the_back_off_of_the_job(
    api: Api, db: TestDatabase, fields: Json
) -> None:
    api.enqueue_many(3, group="a", retry={"base_seconds": HOUR, "jitter": 0})
    settled = api.fail(api.claim_one(), scope="group", **fields)
    if fields:
        wait_until(lambda: api.claim(max_jobs=10)["jobs"])
    else:
        assert api.claim(max_jobs=10)["jobs"] == []
        assert db.value("SELECT until FROM group_cooldowns ORDER BY until DESC LIMIT 1") == parse_time(
            settled["run_at"]
        )


def test_group_failure_of_a_job_without_group_affects_no_other_job(api: Api) -> None:
    api.enqueue_many(2)
    api.fail(api.claim_one(), scope="group", retry_after_seconds=HOUR)
    api.claim_one()


def test_longest_requested_cooldown_wins(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(5, group="a")
    held = api.claim(max_jobs=3)["jobs"]
    longest = [
        api.fail(job, scope="group", retry_after_seconds=seconds)
        for job, seconds in zip(held, (60, HOUR, 1), strict=True)
    ][1]
    assert db.value("SELECT max(until) FROM group_cooldowns WHERE group_key = 'a' AND until > now()") == parse_time(
        longest["run_at"]
    )


def test_settle_request_can_cool_down_several_groups(api: Api, db: TestDatabase) -> None:
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
    assert count_cooldowns(db, api) == 2
    assert api.settle(items[0])["results"][0]["status"] == "already_settled"


def test_failed_settlement_can_be_repeated_and_starts_the_cooldown(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(3, group="a")
    held = api.claim_one()
    lane = db.value("SELECT lane FROM jobs LIMIT 1")
    db.execute("INSERT INTO lane_locks (lane) VALUES ($1) ON CONFLICT DO NOTHING", lane)
    with db.uncommitted("SELECT lane FROM lane_locks WHERE lane = $1 FOR UPDATE", lane):
        assert api.fail(held, scope="group", retry_after_seconds=HOUR, status=503)["outcome"] == "not_done"
    assert api.fail(held, scope="group", retry_after_seconds=HOUR)["status"] == "settled"
    assert api.claim(max_jobs=10)["jobs"] == []
