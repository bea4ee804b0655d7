"""A poller waits on one process, and a job becomes claimable on another.

Runs for each way in which processes learn of each other's jobs.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.database import TestDatabase
from tests.polls import Background, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]
Waker = Callable[[Api, TestDatabase, Json], Any]


class WakeUps:
    """`poller_api` is the broker on which the poller waits."""

    @pytest.mark.parametrize(
        "waker",
        [
            lambda api, db, job: api.release(job),
            lambda api, db, job: api.fail(job, retry_after_seconds=0),
            lambda api, db, job: db.age(job["id"], 61),
            lambda api, db, job: (api.fail(job, retryable=False), api.post(f"/dead-letters/{job['id']}/replay")),
            lambda api, db, job: (api.snooze(job, 600), api.post(f"/jobs/{job['id']}/run-now")),
        ],
        ids=["release", "retry", "lease expiry", "replay", "run now"],
    )
    def test_poller_on_another_process_is_woken_by(
        self,
        first_api: Api,
        poller_api: Api,
        shared_db: TestDatabase,
        background: Background,
        eventually: Eventually,
        waker: Waker,
    ) -> None:
        first_api.enqueue()
        held = first_api.claim_one()
        poll = background.claim(poller_api)
        eventually(lambda: parked_polls(poller_api.http) == 1)
        waker(first_api, shared_db, held)
        assert poll.result(20)["jobs"][0]["id"] == held["id"]

    def test_poller_is_woken_when_another_process_creates_its_queue(
        self, first_api: Api, poller_api: Api, background: Background, eventually: Eventually
    ) -> None:
        poll = background.claim(poller_api)
        eventually(lambda: parked_polls(poller_api.http) == 1)
        job = first_api.enqueue()
        assert poll.result(20)["jobs"][0]["id"] == job["id"]

    def test_many_jobs_of_another_process_wake_many_pollers(
        self, first_api: Api, poller_api: Api, background: Background, eventually: Eventually
    ) -> None:
        polls = background.claims(10, poller_api)
        eventually(lambda: parked_polls(poller_api.http) == 10)
        first_api.post("/jobs/batch", {"jobs": [{"queue": first_api.queue, "job_type": "t"}] * 10}, status=201)
        assert len({poll.result(20)["jobs"][0]["id"] for poll in polls}) == 10

    def test_poller_of_the_job_type_is_woken_by_another_process(
        self, first_api: Api, poller_api: Api, background: Background, eventually: Eventually
    ) -> None:
        """A wake-up from another process has no job type.

        A poller of another type must pass it on.
        """
        wrong = background.claims(2, poller_api, job_types=["b"])
        eventually(lambda: parked_polls(poller_api.http) == 2)
        right = background.claim(poller_api, job_types=["a"])
        eventually(lambda: parked_polls(poller_api.http) == 3)
        job = first_api.enqueue(job_type="a")
        assert right.result(20)["jobs"][0]["id"] == job["id"]
        first_api.enqueue(job_type="b"), first_api.enqueue(job_type="b")
        assert all(len(poll.result(20)["jobs"]) == 1 for poll in wrong)

    def test_directive_set_on_another_process_ends_the_polls_of_its_worker(
        self, first_api: Api, poller_api: Api, background: Background, eventually: Eventually
    ) -> None:
        poll = background.claim(poller_api, worker_id=f"w-{first_api.queue}")
        eventually(lambda: parked_polls(poller_api.http) == 1)
        eventually(lambda: first_api.http.post(f"/workers/w-{first_api.queue}/drain").status_code == 200)
        assert poll.result(20)["directive"] == "drain"
