"""Whatever producers, workers and operators do on two brokers: no limit is exceeded, no order broken, no unique job doubled, none lost."""

import itertools
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.api import Api, Json
from tests.conftest import wait_until
from tests.properties.conftest import World

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

_numbers = itertools.count(1)

# What is drawn never depends on what the brokers answer: they may answer in another order next time. So jobs are chosen by number, and a
# rule for which there is no job does nothing.
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
class Known:
    """A job as it should be. `epoch`: since which change of rules it waits; only jobs of the same one have an order."""

    id: str
    number: int
    epoch: int
    group: str | None
    key: str | None
    state: str = "waiting"
    cancel_requested: bool = False
    lease: Json = field(default_factory=dict)


class Limits(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.db = world.db
        self.queue = f"limits-{next(_numbers)}"
        self.apis = world.apis(self.queue)
        self.markers = world.apis(f"{self.queue}-marker")
        self.marked = False
        self.config: Json = {}
        self.paused = False
        self.epoch = 0
        self.jobs: dict[str, Known] = {}

    # What there is

    def those(self, state: str) -> list[Known]:
        return [job for job in self.jobs.values() if job.state == state]

    def chosen(self, state: str, number: int) -> Known | None:
        jobs = self.those(state)
        return jobs[number % len(jobs)] if jobs else None

    def running(self, group: str | None) -> int:
        return sum(job.group == group for job in self.those("running"))

    @property
    def slot_free(self) -> bool:
        return len(self.those("running")) < int(self.config.get("max_running", sys.maxsize))

    def place_free(self, group: str | None) -> bool:
        return group is None or self.running(group) < int(self.config.get("max_running_per_group", sys.maxsize))

    def claimable(self) -> bool:
        return not self.paused and self.slot_free and any(self.place_free(job.group) for job in self.those("waiting"))

    # Producers

    @rule(at=BROKERS, jobs=st.lists(st.tuples(GROUPS, st.integers(-1, 1), KEYS), min_size=1, max_size=5))
    def produce(self, at: int, jobs: list[tuple[str | None, int, str | None]]) -> None:
        for group, priority, key in jobs:
            self.enqueue(at, group, priority, key)

    def enqueue(self, at: int, group: str | None, priority: int, key: str | None) -> None:
        body: Json = {"queue": self.queue, "job_type": "test", "priority": priority, "max_attempts": 1000}
        body |= {"group": group} if group else {}
        body |= {"unique": {"key": key}} if key else {}
        answer = self.apis[at].http.post("/jobs", json=body)
        holder = self.holder(key)
        if holder is not None:
            assert (answer.status_code, answer.json()["id"]) == (200, holder.id)
            return
        assert answer.status_code == 201, answer.text
        job_id = answer.json()["id"]
        assert job_id not in self.jobs
        self.jobs[job_id] = Known(job_id, len(self.jobs), self.epoch, group, key)

    def holder(self, key: str | None) -> Known | None:
        live = [job for job in self.jobs.values() if key and job.key == key and job.state in ("waiting", "running")]
        assert len(live) <= 1
        return live[0] if live else None

    @rule(at=BROKERS, number=JOBS, running=st.booleans())
    def cancel(self, at: int, number: int, running: bool) -> None:
        job = self.chosen("running" if running else "waiting", number)
        if job is None:
            return
        answer = self.apis[at].http.post(f"/jobs/{job.id}/cancel", json={})
        assert answer.status_code == (202 if running and not job.cancel_requested else 200), answer.text
        job.cancel_requested = True
        if not running:
            job.state = "cancelled"

    # Workers

    @rule(at=BROKERS, max_jobs=st.integers(1, 3))
    def take_one_or_some(self, at: int, max_jobs: int) -> None:
        self.claim(at, max_jobs)

    @rule(at=BROKERS)
    def take_many(self, at: int) -> None:
        self.claim(at, 10)

    def claim(self, at: int, max_jobs: int) -> None:
        expected = self.claimable()
        taken = self.apis[at].claim(max_jobs=max_jobs, wait_seconds=20 if expected else 0)["jobs"]
        note(f"took {[self.jobs[job['id']].number for job in taken]}")
        assert bool(taken) == expected
        for job in taken:
            self.take(self.jobs[job["id"]], job)

    def take(self, job: Known, lease: Json) -> None:
        assert job.state == "waiting"
        assert self.slot_free
        assert self.place_free(job.group)
        assert not self.overtaken(job)
        job.state, job.lease = "running", lease

    def overtaken(self, job: Known) -> list[Known]:
        """Those of a strict group that came before it and wait. Two brokers know the time to some milliseconds, and ids go by it."""
        if self.config.get("max_running_per_group") != 1 or job.group is None:
            return []
        rivals = [other for other in self.those("waiting") if other.group == job.group and other.epoch == job.epoch]
        return [other for other in rivals if other.number < job.number and other.id < job.id]

    @rule(
        at=BROKERS,
        number=JOBS,
        way=st.sampled_from(["complete", "complete", "fail", "release", "snooze", "expire", "die"]),
    )
    def end(self, at: int, number: int, way: str) -> None:
        job = self.chosen("running", number)
        if job is not None:
            getattr(self, way)(self.apis[at], job)

    def complete(self, api: Api, job: Known) -> None:
        assert api.complete(job.lease)["state"] == "completed"
        job.state = "completed"

    def fail(self, api: Api, job: Known) -> None:
        self.is_back(job, api.fail(job.lease, retry_after_seconds=0)["state"])

    def release(self, api: Api, job: Known) -> None:
        self.is_back(job, api.release(job.lease)["state"])

    def snooze(self, api: Api, job: Known) -> None:
        self.is_back(job, api.snooze(job.lease, 0)["state"])

    def expire(self, api: Api, job: Known) -> None:
        self.db.age(job.id, 61)
        wait_until(lambda: api.job(job.id)["state"] != "running")
        self.is_back(job, api.job(job.id)["state"])

    def die(self, api: Api, job: Known) -> None:
        """And be replayed. Who had to make way for it has gone on meanwhile."""
        if job.cancel_requested:
            return
        assert api.fail(job.lease, retryable=False)["state"] == "dead"
        assert api.replay({"id": job.id})["state"] == "ready"
        job.state, job.lease, job.epoch = "waiting", {}, -1 - job.number

    def is_back(self, job: Known, told: str) -> None:
        assert told == ("cancelled" if job.cancel_requested else "ready")
        job.state = "cancelled" if job.cancel_requested else "waiting"

    @rule(at=BROKERS, number=JOBS)
    def complete_late(self, at: int, number: int) -> None:
        """By a worker whose lease has run out: accepted, unless somebody has the job by now, or its token was used."""
        job = self.chosen("waiting", number)
        if job is None or not job.lease:
            return
        answer = self.apis[at].http.post(f"/jobs/{job.id}/complete", json={"lease_token": job.lease["lease_token"]})
        assert answer.status_code in (200, 409)
        if answer.status_code == 200:
            job.state = "completed"

    # Operators

    @initialize(config=CONFIGS)
    def begin(self, config: Json) -> None:
        for marker in self.markers[:1]:
            marker.enqueue()
        self.configure(0, config)

    @rule(at=BROKERS, config=CONFIGS)
    def configure(self, at: int, config: Json) -> None:
        self.apis[at].configure(**config, paused=self.paused)
        self.config = config
        self.epoch += 1
        for job in self.those("waiting") + self.those("running"):
            job.epoch = -1 - job.number  # they may have begun in another order
        self.heard(at)

    @rule(at=BROKERS, seldom=st.integers(0, 3))
    def pause_or_resume(self, at: int, seldom: int = 0) -> None:
        if seldom and not self.paused:
            return
        self.apis[at].resume() if self.paused else self.apis[at].pause()
        self.paused = not self.paused
        self.heard(at)

    def heard(self, at: int) -> None:
        """The other broker has put in force what this one was told: it has heard of what came after, twice."""
        marker, other = self.markers[at], self.markers[1 - at]
        for _ in range(2):
            marker.resume() if self.marked else marker.pause()
            self.marked = not self.marked
            wait_until(lambda: hands_out(other) is not self.marked)

    # Always, and at the end

    @invariant()
    def every_job_is_where_it_should_be(self) -> None:
        counts = self.db.rows(
            "SELECT state, count(*) AS n FROM jobs WHERE id = ANY($1::uuid[]) GROUP BY state", list(self.jobs)
        )
        told = {row["state"]: row["n"] for row in counts}
        assert told.get("running", 0) == len(self.those("running"))
        assert told.get("ready", 0) + told.get("parked", 0) == len(self.those("waiting"))

    def teardown(self) -> None:
        """Nothing is stuck: all that is left can be done, under the rules that are in force."""
        if sys.exc_info()[0] is not None:
            return  # it is broken already
        if self.paused:
            self.pause_or_resume(0)
        at = 0
        while self.those("waiting") or self.those("running"):
            self.end(at, 0, "complete")
            self.claim(at, 3) if self.those("waiting") else None
            at = 1 - at
        for job in self.jobs.values():
            assert self.apis[at].job(job.id)["state"] == job.state
        assert self.apis[at].claim(max_jobs=10)["jobs"] == []


def hands_out(marker: Api) -> bool:
    jobs = marker.claim()["jobs"]
    for job in jobs:
        marker.release(job)
    return bool(jobs)


def test_limits_hold_and_nothing_is_lost(world: World, effort: settings) -> None:
    run_state_machine_as_test(lambda: Limits(world), settings=effort)  # type: ignore[arg-type]
