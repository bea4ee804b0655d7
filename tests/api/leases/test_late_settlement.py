"""A settlement after the lease has expired is accepted unless the job was delivered again."""

from collections.abc import Callable

import pytest

from tests.api.leases.test_settle import item
from tests.api_client import Api, Json
from tests.database import TestDatabase

Expire = Callable[[Json], None]


@pytest.fixture
def expired(api: Api, expire: Expire) -> Json:
    """An expired lease. The job is ready and has not been claimed again."""
    api.enqueue()
    job = api.claim_one(worker_id="slow")
    expire(job)
    return job


def test_a_late_completion_is_accepted(api: Api, expired: Json) -> None:
    result = api.complete(expired, result="late")
    assert (result["status"], result["state"], result["attempt"]) == ("settled", "completed", 1)
    job = api.job(expired["id"])
    assert (job["state"], job["result"], job["crashes"]) == ("completed", "late", 1)
    assert api.claim()["jobs"] == []
    assert api.complete(expired) == {**result, "status": "already_settled"}
    assert api.counts() == {"completed": 1}


def test_late_failure_is_accepted_and_the_job_waits_for_its_back_off(api: Api, expired: Json) -> None:
    result = api.fail(expired)
    assert (result["status"], result["state"], result["attempt"]) == ("settled", "scheduled", 1)
    assert api.claim()["jobs"] == []
    assert api.counts() == {"scheduled": 1}


def test_a_late_final_failure_is_accepted(api: Api, expired: Json) -> None:
    assert api.fail(expired, retryable=False)["state"] == "dead"
    assert api.counts() == {"dead": 1}


def test_late_snooze_is_accepted_but_costs_the_attempt(api: Api, expired: Json) -> None:
    result = api.snooze(expired, 600, checkpoint={"page": 1})
    assert (result["status"], result["state"], result["attempt"]) == ("settled", "scheduled", 1)
    assert api.job(expired["id"])["checkpoint"] == {"page": 1}


def test_late_release_is_accepted_but_costs_the_attempt(api: Api, expired: Json) -> None:
    result = api.release(expired)
    assert (result["status"], result["state"], result["attempt"]) == ("settled", "ready", 1)
    assert api.claim_one()["attempt"] == 2


def test_a_late_batch_is_accepted(api: Api, expired: Json) -> None:
    assert api.settle(item(expired, "complete"))["settled"] == 1


@pytest.mark.parametrize("outcome", ["complete", "fail", "snooze", "release"])
def test_late_settlement_of_a_postponed_job_keeps_the_counts_correct(
    api: Api, db: TestDatabase, expired: Json, outcome: str
) -> None:
    run_at = db.value("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 hour', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
    assert api.patch(f"/jobs/{expired['id']}", {"run_at": run_at})["state"] == "scheduled"
    state = api.settle(item(expired, outcome))["results"][0]["state"]
    assert api.counts() == {state: 1}


def test_late_settlement_is_rejected_after_another_delivery_even_if_that_was_released(api: Api, expired: Json) -> None:
    renewed = api.claim_one()
    api.release(renewed)
    assert api.complete(expired, status=409)["state"] == "ready"
    assert api.claim_one()["id"] == expired["id"]


def test_late_settlement_of_a_cancelled_job_is_rejected(api: Api, expired: Json) -> None:
    api.post(f"/jobs/{expired['id']}/cancel", {})
    assert api.complete(expired, status=409)["state"] == "cancelled"


def test_late_failure_replaces_the_record_of_the_expiry(api: Api, db: TestDatabase, expired: Json) -> None:
    assert [(record["attempt"], record["outcome"]) for record in api.attempts(expired)] == [(1, "expire")]
    api.fail(expired, "too slow", retry_after_seconds=0)
    assert [(record["attempt"], record["outcome"]) for record in api.attempts(expired)] == [(1, "fail")]
    assert api.job(expired["id"])["error"]["message"] == "too slow"
    again = api.claim_one()
    api.fail(again, retryable=False)
    assert [(record["attempt"], record["outcome"]) for record in api.attempts(expired)] == [(1, "fail"), (2, "fail")]
    assert failures(api, db) == 2


def test_late_final_failure_replaces_the_record_of_the_expiry(api: Api, db: TestDatabase, expired: Json) -> None:
    api.fail(expired, retryable=False)
    assert [(record["attempt"], record["outcome"]) for record in api.attempts(expired)] == [(1, "fail")]
    assert failures(api, db) == 1


def failures(api: Api, db: TestDatabase) -> int:
    """How many failures are counted, whether or not the statistics are aggregated already."""
    sql = """
        SELECT sum(failed)
        FROM (SELECT lane, failed FROM stat_deltas UNION ALL SELECT lane, failed FROM stat_rates) AS counted
        WHERE lane / 256 = (SELECT id FROM queues WHERE name = $1)
        """
    return int(db.value(sql, api.queue))
