"""Settlements against each other, cancel, lease expiry and reconciliation.

At most one is accepted.
"""

from functools import partial

import pytest

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.polls import Background

REPETITIONS = 30
REQUIRED_FIELDS: dict[str, Json] = {"fail": {"error": {"message": "m"}}, "snooze": {"delay_seconds": 60}}


def settle_status(api: Api, job: Json, verb: str) -> int:
    """The status code of a settlement."""
    body = {"lease_token": job["lease_token"], **REQUIRED_FIELDS.get(verb, {})}
    return api.http.post(f"/jobs/{job['id']}/{verb}", json=body).status_code


def cancel(api: Api, job: Json) -> int:
    return api.http.post(f"/jobs/{job['id']}/cancel").status_code


def held(api: Api) -> Json:
    api.enqueue()
    return api.claim_one()


def items(jobs: list[Json], outcome: str) -> list[Json]:
    return [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": outcome} for job in jobs]


@pytest.mark.parametrize("other", ["fail", "snooze", "release"])
def test_exactly_one_of_two_concurrent_outcomes_for_one_token_is_accepted(
    api: Api, background: Background, other: str
) -> None:
    states = {"fail": "scheduled", "snooze": "scheduled", "release": "ready"}
    for _ in range(REPETITIONS):
        job = held(api)
        responses = background.together(
            partial(settle_status, api, job, "complete"), partial(settle_status, api, job, other)
        )
        assert sorted(responses) == [200, 409]
        after = api.job(job["id"])
        assert after["state"] == ("completed" if responses[0] == 200 else states[other])
        assert len(api.get(f"/jobs/{job['id']}/attempts")["items"]) == (0 if after["attempt"] == 0 else 1)
        api.http.post(f"/jobs/{job['id']}/cancel")


def test_completion_sent_concurrently_many_times_counts_once(
    api: Api, db: TestDatabase, background: Background
) -> None:
    for _ in range(10):
        job = held(api)
        responses = background.together(*[partial(api.complete, job)] * 6)
        assert sorted(response["status"] for response in responses) == ["already_settled"] * 5 + ["settled"]
    assert db.value("SELECT count(*) FROM finished_jobs") == 10


def test_completion_is_kept_against_a_concurrent_cancel(api: Api, background: Background) -> None:
    for _ in range(REPETITIONS):
        job = held(api)
        done, cancelled = background.together(
            partial(settle_status, api, job, "complete"),
            partial(cancel, api, job),
        )
        assert (done, cancelled in (202, 409)) == (200, True)
        assert api.job(job["id"])["state"] == "completed"


def test_cancel_is_kept_against_a_concurrent_failure(api: Api, background: Background) -> None:
    for _ in range(REPETITIONS):
        job = held(api)
        failed, cancelled = background.together(
            partial(settle_status, api, job, "fail"),
            partial(cancel, api, job),
        )
        assert (failed, cancelled in (200, 202)) == (200, True)
        assert api.job(job["id"])["state"] == "cancelled"


def test_late_completion_or_next_delivery_wins_but_never_both(
    api: Api, db: TestDatabase, background: Background
) -> None:
    """A job is completed by its late holder or delivered again: exactly one of the two."""
    for _ in range(4):
        for _ in range(20):
            api.enqueue(max_attempts=9)
        late = api.claim(max_jobs=20)["jobs"]
        db.execute("UPDATE jobs SET lease_expires_at = now() + (random() - 0.5) * interval '0.2 seconds'")
        db.make_checks_due()
        polls = background.claims(4, api, max_jobs=3, wait_seconds=0.3)
        responses = background.together(*[partial(settle_status, api, job, "complete") for job in late])
        taken = [job["id"] for poll in polls for job in poll.result(20)["jobs"]]
        done = {job["id"] for job, status in zip(late, responses, strict=True) if status == 200}
        assert len(taken) == len(set(taken))
        assert set(taken) == {job["id"] for job in late} - done
        assert db.value("SELECT count(*) FROM finished_jobs WHERE attempt = 1 AND deliveries = 1") == len(done)
        db.empty()


def test_heartbeat_against_lease_expiry_has_one_winner(api: Api, db: TestDatabase, background: Background) -> None:
    for _ in range(4):
        for _ in range(20):
            api.enqueue()
        jobs = api.claim(max_jobs=20)["jobs"]
        db.execute("UPDATE jobs SET lease_expires_at = now() + (random() - 0.3) * interval '0.1 seconds'")
        db.make_checks_due()
        responses = background.together(*[partial(settle_status, api, job, "heartbeat") for job in jobs])
        for job, status in zip(jobs, responses, strict=True):
            after = api.job(job["id"])
            assert (after["state"], after["crashes"]) == (("running", 0) if status == 200 else ("ready", 1))
            assert settle_status(api, job, "heartbeat") == status
        db.empty()


def test_completion_is_kept_against_concurrent_reconciliation(
    api: Api, db: TestDatabase, background: Background
) -> None:
    for _ in range(REPETITIONS):
        api.enqueue()
        job = api.claim_one(worker_id="w")
        db.age(job["id"], 3)
        api.heartbeat("w", holds_all=True)
        done, _ = background.together(partial(api.complete, job), partial(api.heartbeat, "w", holds_all=True))
        assert done["status"] == "settled"
        assert api.job(job["id"])["state"] == "completed"


def test_overlapping_batches_in_opposite_order_do_not_deadlock(api: Api, background: Background) -> None:
    for _ in range(5):
        api.post("/jobs/batch", {"jobs": [{"queue": api.queue, "job_type": "t"}] * 200}, status=201)
        jobs = api.claim(max_jobs=200)["jobs"]
        responses = background.together(
            partial(api.settle, *items(jobs, "complete")),
            partial(api.settle, *items(jobs[::-1], "complete")),
            partial(api.settle, *items(jobs[::-1], "release")),
            partial(api.heartbeat, "w", *jobs),
            partial(api.heartbeat, "w", *jobs[::-1]),
        )
        results = [result for response in responses[:3] for result in response["results"]]
        assert sum(result["status"] == "settled" for result in results) == 200
        wait_until(lambda: not api.claim(max_jobs=200)["jobs"])


def test_dead_letter_replayed_concurrently_becomes_one_job(api: Api, db: TestDatabase, background: Background) -> None:
    for _ in range(REPETITIONS):
        job = api.dead_letter()
        responses = background.together(*[partial(api.http.post, f"/dead-letters/{job['id']}/replay")] * 4)
        assert sorted(response.status_code for response in responses) == [200, 404, 404, 404]
        claimed = api.claim_one()
        assert (claimed["id"], api.job(job["id"])["replay_count"]) == (job["id"], 1)
        assert api.claim()["jobs"] == []
        api.complete(claimed)


def test_concurrent_bulk_replays_replay_each_dead_letter_once(
    api: Api, db: TestDatabase, background: Background
) -> None:
    for _ in range(30):
        api.dead_letter()
    body = {"filter": {"queue": api.queue}}
    responses = background.together(*[partial(api.post, "/dead-letters/replay", body)] * 4)
    assert sum(response["replayed"] for response in responses) == 30
    assert db.value("SELECT count(*) FROM jobs WHERE replay_count = 1") == 30
