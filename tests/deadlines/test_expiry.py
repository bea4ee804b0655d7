"""expires_at: a job that nobody has begun by then is dead."""

from datetime import timedelta

import pytest

from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.deadlines.conftest import SweepAt, wanted_earlier
from tests.dependencies.family import pair
from tests.polls import Background


def expired(api: Api, job: Json) -> Json:
    """The job, when it has died of that."""
    seen = wait_until(lambda: (found := api.job(job["id"]))["state"] == "dead" and found)
    assert seen["state_reason"] == "expired"
    return dict(seen)


def test_a_job_that_nobody_has_begun_in_time_is_dead(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(600), payload={"n": 1}, priority=3)
    wanted_earlier(db, job)
    seen = expired(api, job)
    assert (seen["attempt"], seen["deliveries"], seen["crashes"]) == (0, 0, 0)
    assert "finished_at" in seen
    assert not {"started_at", "worker_id", "error"} & seen.keys()
    assert api.counts() == {"dead": 1}
    assert api.claim()["jobs"] == []


def test_it_is_a_dead_letter_like_others(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(-1), payload={"n": 1})
    expired(api, job)
    letter = api.get(f"/dead-letters/{job['id']}")
    assert (letter["state_reason"], letter["payload"], letter["fingerprint"]) == ("expired", {"n": 1}, "expired")
    assert [one["id"] for one in api.get("/dead-letters", queue=api.queue, reason="expired")["items"]] == [job["id"]]
    (group,) = api.get("/dead-letters/groups", queue=api.queue, by="fingerprint")["items"]
    assert (group["fingerprint"], group["count"]) == ("expired", 1)


def test_a_scheduled_job_expires(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(delay_seconds=3600, expires_at=db.instant(600))
    assert job["state"] == "scheduled"
    wanted_earlier(db, job)
    expired(api, job)
    assert api.counts() == {"dead": 1}


def test_a_blocked_job_expires(api: Api, db: TestDatabase) -> None:
    family = pair(api, expires_at=db.instant(600))
    wanted_earlier(db, family.job("child"))
    expired(api, family.job("child"))
    assert api.counts() == {"ready": 1, "dead": 1}
    family.complete("parent")
    assert family.state("child") == "dead"


@pytest.mark.parametrize(
    "rules", [{"max_running_per_group": 1}, {"fair": True, "max_running_per_group": 1}], ids=["limited", "fair"]
)
def test_a_job_that_waits_for_its_turn_expires(api: Api, db: TestDatabase, rules: Json) -> None:
    api.configure(**rules)
    api.enqueue(group="g")
    held = api.claim_one(wait_seconds=20)
    late, last = api.enqueue(group="g", expires_at=db.instant(600)), api.enqueue(group="g")
    wanted_earlier(db, late)
    expired(api, late)
    assert api.counts() == {"running": 1, "ready": 1, "dead": 1}
    api.complete(held)
    assert api.claim_one(wait_seconds=20)["id"] == last["id"]


def test_a_job_that_expires_gives_its_turn_away(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    late, last = api.enqueue(group="g", expires_at=db.instant(600)), api.enqueue(group="g")
    wait_until(lambda: db.value("SELECT turn FROM jobs WHERE id = $1", late["id"]))
    wanted_earlier(db, late)
    assert api.claim_one(wait_seconds=20)["id"] == last["id"]


def test_a_job_of_a_paused_queue_expires(api: Api, db: TestDatabase) -> None:
    api.configure()
    api.pause()
    expired(api, api.enqueue(expires_at=db.instant(-1)))


def test_many_expire_at_once_and_others_do_not(api: Api, db: TestDatabase) -> None:
    api.batch(*[{"expires_at": db.instant(-1)}] * 700, *[{"expires_at": db.instant(600)}] * 3, *[{}] * 2)
    wait_until(lambda: api.counts() == {"dead": 700, "ready": 5})
    assert len(api.claim(max_jobs=10)["jobs"]) == 5


def test_whoever_waits_for_the_job_hears_of_it(api: Api, db: TestDatabase, background: Background) -> None:
    job = api.enqueue(expires_at=db.instant(600))
    waiting = background.submit(api.job, job["id"], wait_seconds=25)
    wanted_earlier(db, job)
    assert waiting.result(25)["state_reason"] == "expired"


def test_a_job_that_was_begun_in_time_is_past_it(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(600))
    held = api.claim_one()
    wanted_earlier(db, job)
    assert api.heartbeat_one(held)["status"] == "extended"
    assert api.complete(held)["state"] == "completed"


def test_a_retry_of_a_job_that_was_begun_in_time_is_past_it_too(
    drowsy: Api, drowsy_db: TestDatabase, sweep_at: SweepAt
) -> None:
    job = drowsy.enqueue(expires_at=drowsy_db.instant(600))
    drowsy.fail(drowsy.claim_one(), retry_after_seconds=60)
    sweep_at(when(job["created_at"]) + timedelta(days=1))
    assert drowsy.job(job["id"])["state"] == "scheduled"
    drowsy.post(f"/jobs/{job['id']}/run-now")
    assert drowsy.claim_one()["attempt"] == 2


def test_a_job_is_not_handed_out_once_it_is_past_even_if_nobody_has_swept(
    drowsy: Api, drowsy_db: TestDatabase, sweep_at: SweepAt
) -> None:
    late = drowsy.enqueue(expires_at=drowsy_db.instant(600), priority=5)
    other = drowsy.enqueue(expires_at=drowsy_db.instant(600))
    wanted_earlier(drowsy_db, late)
    assert [job["id"] for job in drowsy.claim(max_jobs=5)["jobs"]] == [other["id"]]
    assert drowsy.job(late["id"])["state"] == "ready"
    sweep_at(when(drowsy_db.instant(0)))
    assert drowsy.job(late["id"])["state_reason"] == "expired"
    assert drowsy.counts() == {"running": 1, "dead": 1}


@pytest.mark.parametrize(
    "rules", [{"max_running": 5}, {"rate": {"limit": 5, "per_seconds": 60}}], ids=["max_running", "rate"]
)
def test_nor_through_a_gate(drowsy: Api, drowsy_db: TestDatabase, rules: Json) -> None:
    drowsy.configure(**rules)
    late = drowsy.enqueue(expires_at=drowsy_db.instant(600))
    wanted_earlier(drowsy_db, late)
    assert drowsy.claim()["jobs"] == drowsy.claim(key="k")["jobs"] == []


def test_it_expires_at_its_time_and_not_before(drowsy: Api, drowsy_db: TestDatabase, sweep_at: SweepAt) -> None:
    job = drowsy.enqueue(expires_at=drowsy_db.instant(3600))
    at = drowsy_db.value("SELECT expires_at FROM jobs WHERE id = $1", job["id"])
    sweep_at(at - timedelta(milliseconds=1))
    assert drowsy.job(job["id"])["state"] == "ready"
    sweep_at(at)
    assert drowsy.job(job["id"])["state"] == "dead"


def test_an_expired_job_can_be_replayed_and_runs(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(-1), timeout_seconds=30, lease_seconds=20)
    expired(api, job)
    replayed = api.post(f"/dead-letters/{job['id']}/replay")
    assert (replayed["id"], replayed["state"], replayed["replay_count"]) == (job["id"], "ready", 1)
    held = api.claim_one()
    assert (held["id"], held["attempt"], held["lease_seconds"]) == (job["id"], 1, 20)
    assert api.complete(held)["state"] == "completed"


def test_expired_jobs_can_be_replayed_into_another_queue(api: Api, db: TestDatabase) -> None:
    expired(api, api.enqueue(expires_at=db.instant(-1), timeout_seconds=30))
    other = f"{api.queue}-other"
    api.post(
        "/dead-letters/replay", {"filter": {"queue": api.queue, "reason": "expired"}, "overrides": {"queue": other}}
    )
    assert "deadline_at" in api.claim_one(queues=[other])


@pytest.mark.parametrize("value", ["tomorrow", "2030-01-01T00:00:00", None, 5, "9999-01-01T00:00:00Z"])
def test_what_is_no_instant_is_refused(api: Api, value: object) -> None:
    problem = api.enqueue(status=422, expires_at=value)
    assert [error["pointer"] for error in problem["errors"]] == ["/expires_at"]


def test_another_time_zone_is_the_same_instant(api: Api, db: TestDatabase) -> None:
    at = when(db.instant(3600))
    job = api.enqueue(expires_at=(at.replace(tzinfo=None) + timedelta(hours=5)).isoformat() + "+05:00")
    assert db.value("SELECT expires_at FROM jobs WHERE id = $1", job["id"]) == at
