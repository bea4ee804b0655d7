"""Limits as a state machine: producers, workers and operators act on two brokers at random.

No limit is exceeded, no strict order is broken, no unique job is duplicated, and no job is lost.
"""

import itertools
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.api_client import Api, Json
from tests.concurrency.properties.conftest import BrokerPair
from tests.conftest import wait_until
from tests.coverage import UNCOVERED_JOBS

# The broker of other tests runs in this process and uses `random`, which hypothesis attributes to
# this test.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

_numbers = itertools.count(1)

# Draws never depend on the responses of the brokers: they may come in another order next time. So
# jobs are chosen by number, and a rule for which there is no job does nothing.
BROKERS = st.integers(0, 1)
JOBS = st.integers(0, 7)
GROUPS = st.sampled_from([None, "a", "a", "a", "b"])
KEYS = st.sampled_from([None, None, None, "k", "l"])
CONFIGS = st.sampled_from(
    [
        {},
        {"max_running_per_group": 1},
        {"max_running_per_group": 2},
        {"max_running_per_group": 1, "fair": True},
        {"max_running_per_group": 2, "max_running": 3},
        {"max_running_per_group": 1, "max_running": 2},
        {"max_running": 1},
        {"max_running": 3, "fair": True},
        {"fair": True},
    ]
)


@dataclass
class ModelJob:
    """A job as it should be.

    `epoch`: the change of rules since which it waits. Only jobs of the same epoch have an order.
    """

    id: str
    number: int
    epoch: int
    group: str | None
    key: str | None
    state: str = "waiting"
    cancel_requested: bool = False
    lease: Json = field(default_factory=dict)


class LimitsMachine(RuleBasedStateMachine):
    def __init__(self, broker_pair: BrokerPair) -> None:
        super().__init__()
        self.db = broker_pair.db
        self.queue = f"limits-{next(_numbers)}"
        self.apis = broker_pair.apis(self.queue)
        self.markers = broker_pair.apis(f"{self.queue}-marker")
        self.marked = False
        self.config: Json = {}
        self.paused = False
        self.epoch = 0
        self.jobs: dict[str, ModelJob] = {}

    # The model

    def jobs_in(self, state: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state == state]

    def choose(self, state: str, number: int) -> ModelJob | None:
        jobs = self.jobs_in(state)
        return jobs[number % len(jobs)] if jobs else None

    def running(self, group: str | None) -> int:
        return sum(job.group == group for job in self.jobs_in("running"))

    @property
    def has_free_slot(self) -> bool:
        return len(self.jobs_in("running")) < int(self.config.get("max_running", sys.maxsize))

    def has_free_admission(self, group: str | None) -> bool:
        return group is None or self.running(group) < int(self.config.get("max_running_per_group", sys.maxsize))

    def claimable(self) -> bool:
        return (
            not self.paused
            and self.has_free_slot
            and any(self.has_free_admission(job.group) for job in self.jobs_in("waiting"))
        )

    # Producers

    @rule(broker=BROKERS, jobs=st.lists(st.tuples(GROUPS, st.integers(-1, 1), KEYS), min_size=1, max_size=5))
    def produce(self, broker: int, jobs: list[tuple[str | None, int, str | None]]) -> None:
        for group, priority, key in jobs:
            self.enqueue(broker, group, priority, key)

    def enqueue(self, broker: int, group: str | None, priority: int, key: str | None) -> None:
        body: Json = {"queue": self.queue, "job_type": "test", "priority": priority, "max_attempts": 1000}
        body |= {"group": group} if group else {}
        body |= {"unique": {"key": key}} if key else {}
        response = self.apis[broker].http.post("/jobs", json=body)
        holder = self.holder(key)
        if holder is not None:
            assert (response.status_code, response.json()["id"]) == (200, holder.id)
            return
        assert response.status_code == 201, response.text
        job_id = response.json()["id"]
        assert job_id not in self.jobs
        self.jobs[job_id] = ModelJob(job_id, len(self.jobs), self.epoch, group, key)

    def holder(self, key: str | None) -> ModelJob | None:
        live = [job for job in self.jobs.values() if key and job.key == key and job.state in ("waiting", "running")]
        assert len(live) <= 1
        return live[0] if live else None

    @rule(broker=BROKERS, number=JOBS, running=st.booleans())
    def cancel(self, broker: int, number: int, running: bool) -> None:
        job = self.choose("running" if running else "waiting", number)
        if job is None:
            return
        response = self.apis[broker].http.post(f"/jobs/{job.id}/cancel", json={})
        assert response.status_code == (202 if running and not job.cancel_requested else 200), response.text
        job.cancel_requested = True
        if not running:
            job.state = "cancelled"

    # Workers

    @rule(broker=BROKERS, max_jobs=st.integers(1, 3))
    def claim_several(self, broker: int, max_jobs: int) -> None:
        self.claim(broker, max_jobs)

    @rule(broker=BROKERS)
    def claim_many(self, broker: int) -> None:
        self.claim(broker, 10)

    def claim(self, broker: int, max_jobs: int) -> None:
        expected = self.claimable()
        claimed = self.apis[broker].claim(max_jobs=max_jobs, wait_seconds=20 if expected else 0)["jobs"]
        note(f"claimed {[self.jobs[job['id']].number for job in claimed]}")
        assert bool(claimed) == expected
        for job in claimed:
            self.record_claim(self.jobs[job["id"]], job)

    def record_claim(self, job: ModelJob, lease: Json) -> None:
        assert job.state == "waiting"
        assert self.has_free_slot
        assert self.has_free_admission(job.group)
        assert not self.overtaken_jobs(job)
        job.state, job.lease = "running", lease

    def overtaken_jobs(self, job: ModelJob) -> list[ModelJob]:
        """Returns the waiting jobs of a strict group that came before this one.

        Ids must be in order, too: they contain the time, which two brokers know to a few
        milliseconds.
        """
        if self.config.get("max_running_per_group") != 1 or job.group is None:
            return []
        rivals = [other for other in self.jobs_in("waiting") if other.group == job.group and other.epoch == job.epoch]
        return [other for other in rivals if other.number < job.number and other.id < job.id]

    @rule(
        broker=BROKERS,
        number=JOBS,
        outcome=st.sampled_from(["complete", "complete", "fail", "release", "snooze", "expire", "die_and_replay"]),
    )
    def end(self, broker: int, number: int, outcome: str) -> None:
        job = self.choose("running", number)
        if job is not None:
            getattr(self, outcome)(self.apis[broker], job)

    def complete(self, api: Api, job: ModelJob) -> None:
        assert api.complete(job.lease)["state"] == "completed"
        job.state = "completed"

    def fail(self, api: Api, job: ModelJob) -> None:
        self.record_requeue(job, api.fail(job.lease, retry_after_seconds=0)["state"])

    def release(self, api: Api, job: ModelJob) -> None:
        self.record_requeue(job, api.release(job.lease)["state"])

    def snooze(self, api: Api, job: ModelJob) -> None:
        self.record_requeue(job, api.snooze(job.lease, 0)["state"])

    def expire(self, api: Api, job: ModelJob) -> None:
        self.db.age(job.id, 61)
        wait_until(lambda: api.job(job.id)["state"] != "running")
        self.record_requeue(job, api.job(job.id)["state"])

    def die_and_replay(self, api: Api, job: ModelJob) -> None:
        """Fails the job for good and replays it.

        Younger jobs of its group have gone on in the meantime.
        """
        if job.cancel_requested:
            return
        assert api.fail(job.lease, retryable=False)["state"] == "dead"
        assert api.replay({"id": job.id})["state"] == "ready"
        job.state, job.lease, job.epoch = "waiting", {}, -1 - job.number

    def record_requeue(self, job: ModelJob, state: str) -> None:
        assert state == ("cancelled" if job.cancel_requested else "ready")
        job.state = "cancelled" if job.cancel_requested else "waiting"

    @rule(broker=BROKERS, number=JOBS)
    def complete_late(self, broker: int, number: int) -> None:
        """Completes a job after its lease has expired.

        The broker accepts that, unless the job was delivered again or its token was consumed.
        """
        job = self.choose("waiting", number)
        if job is None or not job.lease:
            return
        response = self.apis[broker].http.post(
            f"/jobs/{job.id}/complete", json={"lease_token": job.lease["lease_token"]}
        )
        assert response.status_code in (200, 409)
        if response.status_code == 200:
            job.state = "completed"

    # Operators

    @initialize(config=CONFIGS)
    def begin(self, config: Json) -> None:
        for marker in self.markers[:1]:
            marker.enqueue()
        self.configure(0, config)

    @rule(broker=BROKERS, config=CONFIGS)
    def configure(self, broker: int, config: Json) -> None:
        self.apis[broker].configure(**config, paused=self.paused)
        self.config = config
        self.epoch += 1
        for job in self.jobs_in("waiting") + self.jobs_in("running"):
            job.epoch = -1 - job.number  # they may have started in another order
        self.wait_for_other_broker(broker)

    @rule(broker=BROKERS, rarely=st.integers(0, 3))
    def pause_or_resume(self, broker: int, rarely: int = 0) -> None:
        if rarely and not self.paused:
            return
        self.apis[broker].resume() if self.paused else self.apis[broker].pause()
        self.paused = not self.paused
        self.wait_for_other_broker(broker)

    def wait_for_other_broker(self, broker: int) -> None:
        """Waits until the other broker uses the new rules: it has seen a later change, twice."""
        marker, other = self.markers[broker], self.markers[1 - broker]
        for _ in range(2):
            marker.resume() if self.marked else marker.pause()
            self.marked = not self.marked
            wait_until(lambda: delivers(other) is not self.marked)

    # Invariants, at each step and at the end

    @invariant()
    def every_job_is_where_it_should_be(self) -> None:
        counts = self.db.rows(
            "SELECT state, count(*) AS n FROM jobs WHERE id = ANY($1::uuid[]) GROUP BY state", list(self.jobs)
        )
        counts_by_state = {row["state"]: row["n"] for row in counts}
        assert counts_by_state.get("running", 0) == len(self.jobs_in("running"))
        assert counts_by_state.get("ready", 0) + counts_by_state.get("pending", 0) == len(self.jobs_in("waiting"))

    def teardown(self) -> None:
        """No job is stuck: all remaining jobs can be completed under the current rules."""
        if sys.exc_info()[0] is not None:
            return  # the test has failed already
        assert self.db.rows(UNCOVERED_JOBS) == []
        if self.paused:
            self.pause_or_resume(0)
        broker = 0
        while self.jobs_in("waiting") or self.jobs_in("running"):
            self.end(broker, 0, "complete")
            self.claim(broker, 3) if self.jobs_in("waiting") else None
            broker = 1 - broker
        for job in self.jobs.values():
            assert self.apis[broker].job(job.id)["state"] == job.state
        assert self.apis[broker].claim(max_jobs=10)["jobs"] == []


def delivers(marker: Api) -> bool:
    jobs = marker.claim()["jobs"]
    for job in jobs:
        marker.release(job)
    return bool(jobs)


def test_limits_hold_and_no_job_is_lost(broker_pair: BrokerPair, hypothesis_settings: settings) -> None:
    run_state_machine_as_test(lambda: LimitsMachine(broker_pair), settings=hypothesis_settings)  # type: ignore[arg-type]
