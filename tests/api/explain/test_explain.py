"""GET /jobs/{id}/explain: every reason why a job is not running, with the values behind it."""

from typing import Any

import pytest

from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase


def explain(api: Api, job: Json) -> Json:
    explanation: Json = api.get(f"/jobs/{job['id']}/explain")
    return explanation


def reason(api: Api, job: Json, code: str) -> Json:
    """Waits for the reason with this code: admissions are made a moment later."""

    def found() -> Any:
        return next((entry for entry in explain(api, job)["reasons"] if entry["code"] == code), None)

    entry: Json = wait_until(found)
    return entry


def codes(api: Api, job: Json) -> list[str]:
    return [entry["code"] for entry in explain(api, job)["reasons"]]


@pytest.fixture
def polled_api(api: Api) -> Api:
    """A queue that a worker has polled, so that `no_worker` is not among the reasons."""
    api.configure()
    api.claim()
    return api


def test_job_that_no_limit_holds_back_is_claimable(polled_api: Api) -> None:
    job = polled_api.enqueue()
    assert explain(polled_api, job) == {
        "state": "ready",
        "reasons": [{"code": "claimable", "detail": "the next worker that polls for it gets it"}],
    }


def test_scheduled_job_is_not_due_until_its_run_at(polled_api: Api) -> None:
    job = polled_api.enqueue(delay_seconds=60)
    explanation = explain(polled_api, job)
    assert (explanation["state"], codes(polled_api, job)) == ("scheduled", ["not_due"])
    assert explanation["reasons"][0]["until"] == job["run_at"]


def test_waiting_retry_shows_its_state_reason(polled_api: Api) -> None:
    job = polled_api.enqueue()
    polled_api.fail(polled_api.claim_one(), retry_after_seconds=60)
    assert reason(polled_api, job, "not_due")["reason"] == "retry_backoff"


def test_blocked_job_lists_its_unfinished_parents(polled_api: Api) -> None:
    parents = [polled_api.enqueue()["id"] for _ in range(2)]
    child = polled_api.enqueue(depends_on=parents)
    assert reason(polled_api, child, "waiting_for_jobs")["job_ids"] == parents
    polled_api.complete(polled_api.claim_one())
    wait_until(lambda: reason(polled_api, child, "waiting_for_jobs")["job_ids"] == parents[1:])


def test_paused_queue_shows_reason_and_time(polled_api: Api) -> None:
    job = polled_api.enqueue()
    paused = polled_api.post(f"/queues/{polled_api.queue}/pause", {"reason": "we move"})
    found = reason(polled_api, job, "queue_paused")
    assert (found["reason"], found["since"]) == ("we move", paused["paused_at"])
    polled_api.post(f"/queues/{polled_api.queue}/resume")
    assert "queue_paused" not in codes(polled_api, job)


def test_group_at_its_limit_shows_admitted_jobs_and_jobs_ahead(polled_api: Api) -> None:
    polled_api.configure(max_running_per_group=1)
    jobs = [polled_api.enqueue(group="g") for _ in range(3)]
    polled_api.claim_one(wait_seconds=20)
    found = reason(polled_api, jobs[2], "group_at_limit")
    assert (found["job_ids"], found["ahead"], found["limit"], found["group"]) == ([jobs[0]["id"]], 1, 1, "g")


def test_cooling_group_shows_when_its_cooldown_ends(polled_api: Api) -> None:
    jobs = [polled_api.enqueue(group="g") for _ in range(2)]
    settled = polled_api.fail(polled_api.claim_one(), retry_after_seconds=60, scope="group")
    found = reason(polled_api, jobs[1], "group_at_rest")
    assert parse_time(found["until"]) >= parse_time(settled["run_at"])
    assert found["group"] == "g"


def test_queue_at_its_limit_shows_the_number_of_running_jobs(polled_api: Api) -> None:
    polled_api.configure(max_running=2)
    jobs = polled_api.enqueue_many(3)
    polled_api.claim(max_jobs=2)
    found = reason(polled_api, {"id": jobs[2]}, "queue_at_limit")
    assert (found["running"], found["limit"]) == (2, 2)


def test_exhausted_rate_shows_when_the_next_job_is_allowed(polled_api: Api) -> None:
    polled_api.configure(rate={"limit": 1, "per_seconds": 600})
    jobs = polled_api.enqueue_many(2)
    held = polled_api.claim_one()
    found = reason(polled_api, {"id": jobs[1]}, "rate_limited")
    began = parse_time(polled_api.job(held["id"])["started_at"])
    assert 600 <= (parse_time(found["until"]) - began).total_seconds() < 601


def test_jobs_ahead_in_the_queue_are_counted(polled_api: Api) -> None:
    polled_api.enqueue_many(2)
    job = polled_api.enqueue()
    polled_api.enqueue(priority=5)
    polled_api.enqueue()
    assert reason(polled_api, job, "jobs_ahead")["ahead"] == 3


def test_jobs_ahead_in_a_fair_queue_are_counted_by_pass(polled_api: Api) -> None:
    polled_api.configure(fair=True)
    [polled_api.enqueue(group="a") for _ in range(3)]
    job = polled_api.enqueue(group="b")
    assert reason(polled_api, job, "jobs_ahead")["ahead"] == 1
    assert codes(polled_api, job) == ["jobs_ahead"]


def test_pending_job_is_explained_until_it_is_admitted(polled_api: Api, db: TestDatabase) -> None:
    """A job is pending for a moment only. Here it is made pending again by moving a row."""
    polled_api.configure(fair=True)
    job = polled_api.enqueue(group="a")
    wait_until(lambda: codes(polled_api, job) == ["claimable"])
    db.execute("UPDATE jobs SET state = 'pending', admission = NULL, group_key = 'b' WHERE id = $1", job["id"])
    assert codes(polled_api, job)[0] in ("waits_for_turn", "claimable")
    wait_until(lambda: codes(polled_api, job) == ["claimable"])


def test_queue_without_polls_has_no_worker(api: Api) -> None:
    job = api.enqueue()
    assert "since" not in reason(api, job, "no_worker")
    api.claim(job_types=["other"])
    assert "no_worker" in codes(api, job)
    api.claim(job_types=["test"], max_jobs=1, settle=[])
    assert "no_worker" not in codes(api, job)


def test_old_poll_does_not_count_as_a_worker(polled_api: Api, db: TestDatabase) -> None:
    job = polled_api.enqueue()
    assert codes(polled_api, job) == ["claimable"]
    db.execute("UPDATE poll_history SET last_polled_at = last_polled_at - interval '6 minutes'")
    assert "since" in reason(polled_api, job, "no_worker")


def test_explanation_lists_all_reasons(api: Api) -> None:
    api.configure()
    api.pause()
    job = api.enqueue(delay_seconds=60)
    assert codes(api, job) == ["not_due", "queue_paused", "no_worker"]


def test_running_job_shows_its_worker(polled_api: Api) -> None:
    job = polled_api.enqueue()
    polled_api.claim_one(worker_id="w-7")
    explanation = explain(polled_api, job)
    assert (explanation["state"], explanation["reasons"][0]["code"], explanation["reasons"][0]["worker_id"]) == (
        "running",
        "running",
        "w-7",
    )


def test_running_job_shows_that_it_should_stop(polled_api: Api) -> None:
    job = polled_api.enqueue()
    polled_api.claim_one()
    requested_at = polled_api.post(f"/jobs/{job['id']}/cancel", status=202)["cancel_requested_at"]
    reasons = explain(polled_api, job)["reasons"]
    assert [entry["code"] for entry in reasons] == ["running", "cancel_requested"]
    assert reasons[1]["since"] == requested_at


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled"])
def test_finished_job_shows_its_state(polled_api: Api, end: str) -> None:
    job = polled_api.enqueue()
    if end == "cancelled":
        polled_api.cancel(job)
    elif end == "dead":
        polled_api.fail(polled_api.claim_one(), retryable=False)
    else:
        polled_api.complete(polled_api.claim_one())
    explanation = explain(polled_api, job)
    assert (explanation["state"], [entry["code"] for entry in explanation["reasons"]]) == (end, [end])


def test_unknown_job_cannot_be_explained(api: Api) -> None:
    api.get("/jobs/01a1e24b-7875-7000-8000-4007af56e171/explain", status=404)


def test_dead_job_explains_its_state_reason(polled_api: Api, db: TestDatabase) -> None:
    crashed = polled_api.enqueue(max_attempts=5)
    for _ in range(3):
        db.age(polled_api.claim_one()["id"], 61)
        wait_until(lambda: polled_api.job(crashed["id"])["state"] != "running")
    failed = polled_api.enqueue(max_attempts=1)
    polled_api.fail(polled_api.claim_one())
    details = [reason(polled_api, job, "dead")["detail"] for job in (crashed, failed)]
    assert details == [
        "it is dead: poison, its lease expired 3 times",
        "it is dead: attempts_exhausted, it has used all of its attempts (1)",
    ]
