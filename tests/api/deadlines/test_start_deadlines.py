"""expires_at: a job that has not started by its start deadline is dead."""

from datetime import timedelta

import pytest

from tests.api.deadlines.conftest import RunScansAt, backdate_start_deadline
from tests.api.dependencies.job_graph import enqueue_pair
from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background
from tests.table import table


def wait_until_expired(api: Api, job: Json) -> Json:
    """The job, after it has missed its start deadline."""
    seen = wait_until(lambda: (found := api.job(job["id"]))["state"] == "dead" and found)
    assert seen["state_reason"] == "expired"
    return dict(seen)


def test_job_that_misses_its_start_deadline_is_dead(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(600), payload={"n": 1}, priority=3)
    backdate_start_deadline(db, job)
    seen = wait_until_expired(api, job)
    assert (seen["attempt"], seen["deliveries"], seen["crashes"]) == (0, 0, 0)
    assert "finished_at" in seen
    assert not {"started_at", "worker_id", "error"} & seen.keys()
    assert api.counts() == {"dead": 1}
    assert api.claim()["jobs"] == []


def test_job_that_missed_its_start_deadline_is_a_dead_letter(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(-1), payload={"n": 1})
    wait_until_expired(api, job)
    letter = api.get(f"/dead-letters/{job['id']}")
    assert (letter["state_reason"], letter["payload"], letter["fingerprint"]) == ("expired", {"n": 1}, "expired")
    assert [letter["id"] for letter in api.get("/dead-letters", queue=api.queue, reason="expired")["items"]] == [
        job["id"]
    ]
    (group,) = api.get("/dead-letters/groups", queue=api.queue, by="fingerprint")["items"]
    assert (group["fingerprint"], group["count"]) == ("expired", 1)


def test_scheduled_job_misses_its_start_deadline(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(delay_seconds=3600, expires_at=db.instant(600))
    assert job["state"] == "scheduled"
    backdate_start_deadline(db, job)
    wait_until_expired(api, job)
    assert api.counts() == {"dead": 1}


def test_blocked_job_misses_its_start_deadline(api: Api, db: TestDatabase) -> None:
    graph = enqueue_pair(api, expires_at=db.instant(600))
    backdate_start_deadline(db, graph.job("child"))
    wait_until_expired(api, graph.job("child"))
    assert api.counts() == {"ready": 1, "dead": 1}
    graph.complete("parent")
    assert graph.state("child") == "dead"


@pytest.mark.parametrize(
    "rules", [{"max_running_per_group": 1}, {"fair": True, "max_running_per_group": 1}], ids=["limited", "fair"]
)
def test_pending_job_misses_its_start_deadline(api: Api, db: TestDatabase, rules: Json) -> None:
    api.configure(**rules)
    api.enqueue(group="g")
    claimed = api.claim_one(wait_seconds=20)
    late, last = api.enqueue(group="g", expires_at=db.instant(600)), api.enqueue(group="g")
    backdate_start_deadline(db, late)
    wait_until_expired(api, late)
    assert api.counts() == {"running": 1, "ready": 1, "dead": 1}
    api.complete(claimed)
    assert api.claim_one(wait_seconds=20)["id"] == last["id"]


def test_job_that_misses_its_start_deadline_frees_its_admission(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    late, last = api.enqueue(group="g", expires_at=db.instant(600)), api.enqueue(group="g")
    wait_until(lambda: db.value("SELECT admission FROM jobs WHERE id = $1", late["id"]))
    backdate_start_deadline(db, late)
    assert api.claim_one(wait_seconds=20)["id"] == last["id"]


def test_job_of_a_paused_queue_misses_its_start_deadline(api: Api, db: TestDatabase) -> None:
    api.configure()
    api.pause()
    wait_until_expired(api, api.enqueue(expires_at=db.instant(-1)))


def test_many_jobs_miss_their_start_deadline_and_others_do_not(api: Api, db: TestDatabase) -> None:
    api.batch(*[{"expires_at": db.instant(-1)}] * 700, *[{"expires_at": db.instant(600)}] * 3, *[{}] * 2)
    wait_until(lambda: api.counts() == {"dead": 700, "ready": 5})
    assert len(api.claim(max_jobs=10)["jobs"]) == 5


def test_waiting_for_a_result_ends_when_the_start_deadline_is_missed(
    api: Api, db: TestDatabase, background: Background
) -> None:
    job = api.enqueue(expires_at=db.instant(600))
    waiting = background.submit(api.job, job["id"], wait_seconds=25)
    backdate_start_deadline(db, job)
    assert waiting.result(25)["state_reason"] == "expired"


def test_start_deadline_does_not_apply_to_a_running_job(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(600))
    claimed = api.claim_one()
    backdate_start_deadline(db, job)
    assert api.heartbeat_one(claimed)["status"] == "extended"
    assert api.complete(claimed)["state"] == "completed"


def test_start_deadline_does_not_apply_to_a_retry(
    api_without_scans: Api, db_without_scans: TestDatabase, run_scans_at: RunScansAt
) -> None:
    job = api_without_scans.enqueue(expires_at=db_without_scans.instant(600))
    api_without_scans.fail(api_without_scans.claim_one(), retry_after_seconds=60)
    run_scans_at(parse_time(job["created_at"]) + timedelta(days=1))
    assert api_without_scans.job(job["id"])["state"] == "scheduled"
    api_without_scans.post(f"/jobs/{job['id']}/run-now")
    assert api_without_scans.claim_one()["attempt"] == 2


def test_job_is_not_delivered_after_its_start_deadline_even_before_a_scan(
    api_without_scans: Api, db_without_scans: TestDatabase, run_scans_at: RunScansAt
) -> None:
    late = api_without_scans.enqueue(expires_at=db_without_scans.instant(600), priority=5)
    other = api_without_scans.enqueue(expires_at=db_without_scans.instant(600))
    backdate_start_deadline(db_without_scans, late)
    assert [job["id"] for job in api_without_scans.claim(max_jobs=5)["jobs"]] == [other["id"]]
    assert api_without_scans.job(late["id"])["state"] == "ready"
    run_scans_at(parse_time(db_without_scans.instant(0)))
    assert api_without_scans.job(late["id"])["state_reason"] == "expired"
    assert api_without_scans.counts() == {"running": 1, "dead": 1}


@pytest.mark.parametrize(
    "rules", [{"max_running": 5}, {"rate": {"limit": 5, "per_seconds": 60}}], ids=["max_running", "rate"]
)
def test_limited_queue_delivers_no_job_after_its_start_deadline(
    api_without_scans: Api, db_without_scans: TestDatabase, rules: Json
) -> None:
    api_without_scans.configure(**rules)
    late = api_without_scans.enqueue(expires_at=db_without_scans.instant(600))
    backdate_start_deadline(db_without_scans, late)
    assert api_without_scans.claim()["jobs"] == api_without_scans.claim(key="k")["jobs"] == []


def test_start_deadline_is_enforced_at_its_instant_and_not_earlier(
    api_without_scans: Api, db_without_scans: TestDatabase, run_scans_at: RunScansAt
) -> None:
    job = api_without_scans.enqueue(expires_at=db_without_scans.instant(3600))
    at = db_without_scans.value("SELECT expires_at FROM jobs WHERE id = $1", job["id"])
    run_scans_at(at - timedelta(milliseconds=1))
    assert api_without_scans.job(job["id"])["state"] == "ready"
    run_scans_at(at)
    assert api_without_scans.job(job["id"])["state"] == "dead"


def test_job_that_missed_its_start_deadline_can_be_replayed_and_runs(api: Api, db: TestDatabase) -> None:
    job = api.enqueue(expires_at=db.instant(-1), timeout_seconds=30, lease_seconds=20)
    wait_until_expired(api, job)
    replayed = api.post(f"/dead-letters/{job['id']}/replay")
    assert (replayed["id"], replayed["state"], replayed["replay_count"]) == (job["id"], "ready", 1)
    claimed = api.claim_one()
    assert (claimed["id"], claimed["attempt"], claimed["lease_seconds"]) == (job["id"], 1, 20)
    assert api.complete(claimed)["state"] == "completed"


def test_jobs_that_missed_their_start_deadline_can_be_replayed_into_another_queue(api: Api, db: TestDatabase) -> None:
    wait_until_expired(api, api.enqueue(expires_at=db.instant(-1), timeout_seconds=30))
    other = f"{api.queue}-other"
    api.post(
        "/dead-letters/replay", {"filter": {"queue": api.queue, "reason": "expired"}, "overrides": {"queue": other}}
    )
    assert "deadline_at" in api.claim_one(queues=[other])


@table("value", ["tomorrow", "2030-01-01T00:00:00", None, 5, "9999-01-01T00:00:00Z"])
def test_invalid_start_deadline_is_rejected(api: Api, value: object) -> None:
    problem = api.enqueue(status=422, expires_at=value)
    assert [error["pointer"] for error in problem["errors"]] == ["/expires_at"]


def test_start_deadline_may_have_any_time_zone(api: Api, db: TestDatabase) -> None:
    at = parse_time(db.instant(3600))
    job = api.enqueue(expires_at=(at.replace(tzinfo=None) + timedelta(hours=5)).isoformat() + "+05:00")
    assert db.value("SELECT expires_at FROM jobs WHERE id = $1", job["id"]) == at
