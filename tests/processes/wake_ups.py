"""A poll is parked on one process, and the job becomes claimable on another. Run for each way in which processes hear of each other."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json
from tests.database import TestDatabase
from tests.polls import Background, parked

Eventually = Callable[[Callable[[], Any]], Any]
Waker = Callable[[Api, TestDatabase, Json], Any]


class WakeUps:
    """`there` is where the poll is parked."""

    @pytest.mark.parametrize(
        "waker",
        [
            lambda api, db, job: api.release(job),
            lambda api, db, job: api.fail(job, retry_after_seconds=0),
            lambda api, db, job: db.age(job["id"], 61),
            lambda api, db, job: (api.fail(job, retryable=False), api.post(f"/dead-letters/{job['id']}/replay")),
            lambda api, db, job: (api.snooze(job, 600), api.post(f"/jobs/{job['id']}/run-now")),
        ],
        ids=["release", "retry", "expiry", "replay", "run now"],
    )
    def test_whatever_makes_a_job_claimable_wakes(
        self, one: Api, there: Api, common: TestDatabase, background: Background, eventually: Eventually, waker: Waker
    ) -> None:
        one.enqueue()
        held = one.claim_one()
        poll = background.claim(there)
        eventually(lambda: parked(there.http) == 1)
        waker(one, common, held)
        assert poll.result(20)["jobs"][0]["id"] == held["id"]

    def test_a_queue_that_comes_into_being_elsewhere(
        self, one: Api, there: Api, background: Background, eventually: Eventually
    ) -> None:
        poll = background.claim(there)
        eventually(lambda: parked(there.http) == 1)
        job = one.enqueue()
        assert poll.result(20)["jobs"][0]["id"] == job["id"]

    def test_many_jobs_wake_many_polls(
        self, one: Api, there: Api, background: Background, eventually: Eventually
    ) -> None:
        polls = background.claims(10, there)
        eventually(lambda: parked(there.http) == 10)
        one.post("/jobs/batch", {"jobs": [{"queue": one.queue, "job_type": "t"}] * 10}, status=201)
        assert len({poll.result(20)["jobs"][0]["id"] for poll in polls}) == 10

    def test_the_poll_that_takes_the_type_is_woken(
        self, one: Api, there: Api, background: Background, eventually: Eventually
    ) -> None:
        """Word from elsewhere does not say which type: a poll for another one must not keep it to itself."""
        wrong = background.claims(2, there, job_types=["b"])
        eventually(lambda: parked(there.http) == 2)
        right = background.claim(there, job_types=["a"])
        eventually(lambda: parked(there.http) == 3)
        job = one.enqueue(job_type="a")
        assert right.result(20)["jobs"][0]["id"] == job["id"]
        one.enqueue(job_type="b"), one.enqueue(job_type="b")
        assert all(len(poll.result(20)["jobs"]) == 1 for poll in wrong)

    def test_a_directive_given_elsewhere_ends_the_polls_of_its_worker(
        self, one: Api, there: Api, background: Background, eventually: Eventually
    ) -> None:
        poll = background.claim(there, worker_id=f"w-{one.queue}")
        eventually(lambda: parked(there.http) == 1)
        eventually(lambda: one.http.post(f"/workers/w-{one.queue}/drain").status_code == 200)
        assert poll.result(20)["directive"] == "drain"
