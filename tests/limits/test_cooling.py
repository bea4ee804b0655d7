"""fail with `scope: group`: nobody of the group begins for a while; then one goes first, and what becomes of it decides for the others."""

from collections.abc import Callable

import pytest

from tests.api import Api, Json, when
from tests.broker import threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire, ids
from tests.polls import Background, parked

HOUR = 3600

QUEUES: dict[str, Json] = {
    "unlimited": {},
    "limited": {"max_running_per_group": 3},
    "strict": {"max_running_per_group": 1},
    "fair": {"fair": True},
    "fair and limited": {"fair": True, "max_running_per_group": 2},
}


@pytest.fixture(params=list(QUEUES.values()), ids=list(QUEUES))
def cool(request: pytest.FixtureRequest, api: Api) -> "Cooling":
    """In every kind of queue."""
    api.configure(**request.param)
    return Cooling(api)


class Cooling:
    """A group of some jobs whose first one has said that its downstream has had enough."""

    def __init__(self, api: Api, jobs: int = 4, seconds: int = HOUR) -> None:
        self.api = api
        self.jobs = api.enqueue_many(jobs, group="a")
        self.strict = api.get(f"/queues/{api.queue}").get("max_running_per_group") == 1
        self.first = api.claim_one(wait_seconds=20)
        self.told = api.fail(self.first, scope="group", retry_after_seconds=seconds)

    def hands_out_nothing(self) -> bool:
        """Not even after another group's job, which is decided on later, has been handed out."""
        other = self.api.enqueue(group="other")
        taken = self.api.claim_one(max_jobs=10, wait_seconds=20)
        self.api.complete(taken)
        return bool(taken["id"] == other["id"]) and not self.api.claim(max_jobs=10)["jobs"]

    def probe(self) -> Json:
        """The one that goes first; nobody goes with it."""
        probe = self.api.claim_one(max_jobs=10, wait_seconds=20)
        assert probe["group"] == "a"
        assert self.hands_out_nothing()
        return probe

    def all_done(self) -> bool:
        """Everybody is handed out, in the end."""
        while self.api.counts().keys() & {"ready", "running"}:
            for job in self.api.claim(max_jobs=10, wait_seconds=20)["jobs"]:
                self.api.complete(job)
        return not self.api.get("/jobs", queue=self.api.queue, group="a", state="ready")["items"]


def rest_over(db: TestDatabase) -> None:
    """As if the time had passed, for the groups that rest and for the jobs that were put off with them."""
    db.execute("UPDATE rests SET until = now() - interval '1 millisecond'")
    db.execute("UPDATE jobs SET run_at = now() - interval '1 millisecond' WHERE state = 'scheduled'")
    db.execute("UPDATE versions SET number = number + 1")
    wait_until(lambda: db.value("SELECT count(*) FROM jobs WHERE state = 'scheduled' AND run_at < now()") == 0)


def resting(db: TestDatabase, api: Api) -> int:
    count: int = db.value("SELECT count(*) FROM rests JOIN queues ON lane / 256 = queues.id WHERE name = $1", api.queue)
    return count


# While it rests


def test_nobody_of_the_group_is_handed_out(cool: Cooling) -> None:
    assert cool.told["state"] == "scheduled"
    assert cool.hands_out_nothing()
    assert cool.api.counts()["ready"] == 3


def test_jobs_of_other_groups_and_of_none_are(cool: Cooling) -> None:
    others = [cool.api.enqueue(group="b")["id"], cool.api.enqueue()["id"]]
    taken = [cool.api.claim_one(wait_seconds=20)["id"] for _ in others]
    assert sorted(taken) == sorted(others)


def test_those_that_come_meanwhile_wait_too(cool: Cooling, db: TestDatabase) -> None:
    assert cool.api.enqueue(group="a")["state"] == "ready"
    assert cool.hands_out_nothing()
    rest_over(db)
    assert cool.all_done()


def test_those_that_come_due_or_come_back_meanwhile_wait_too(api: Api, db: TestDatabase, expire: Expire) -> None:
    delayed = api.enqueue(group="a", delay_seconds=HOUR)
    dead = api.dead(group="a")
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
    rest_over(db)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    done = 1
    while done < 6:
        taken = api.claim(max_jobs=10, wait_seconds=20)["jobs"]
        done += len(taken)
    assert len(jobs) + 2 == done


def test_the_group_of_the_same_name_in_another_queue_goes_on(api: Api) -> None:
    cool = Cooling(api)
    other = api.enqueue(group="a", queue=f"{api.queue}-2")
    assert api.claim_one(queues=[f"{api.queue}-2"])["id"] == other["id"]
    assert cool.hands_out_nothing()


def test_who_runs_may_go_on(api: Api) -> None:
    jobs = api.enqueue_many(3, group="a")
    first, second = api.claim(max_jobs=2)["jobs"]
    api.fail(first, scope="group", retry_after_seconds=HOUR)
    assert api.heartbeat_one(second)["status"] == "extended"
    assert api.complete(second)["state"] == "completed"
    assert api.claim()["jobs"] == []
    assert api.job(jobs[2])["state"] == "ready"


def test_they_can_be_cancelled_and_changed(cool: Cooling, db: TestDatabase) -> None:
    assert cool.api.cancel({"id": cool.jobs[1]})["state"] == "cancelled"
    assert cool.api.change({"id": cool.jobs[2]}, payload=1)["state"] == "ready"
    rest_over(db)
    assert cool.all_done()


@pytest.mark.parametrize("fields", [{}, {"retryable": False}], ids=["again", "not again"])
def test_without_a_time_it_is_as_long_as_the_jobs_own_delay(api: Api, db: TestDatabase, fields: Json) -> None:
    api.enqueue_many(3, group="a", retry={"base_seconds": HOUR, "jitter": 0})
    told = api.fail(api.claim_one(), scope="group", **fields)
    if fields:
        wait_until(lambda: api.claim(max_jobs=10)["jobs"])
    else:
        assert api.claim(max_jobs=10)["jobs"] == []
        assert db.value("SELECT until FROM rests ORDER BY until DESC LIMIT 1") == when(told["run_at"])


def test_a_job_without_a_group_speaks_for_itself(api: Api) -> None:
    api.enqueue_many(2)
    api.fail(api.claim_one(), scope="group", retry_after_seconds=HOUR)
    api.claim_one()


def test_the_longest_rest_that_was_asked_for_counts(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(5, group="a")
    held = api.claim(max_jobs=3)["jobs"]
    longest = [api.fail(job, scope="group", retry_after_seconds=seconds) for job, seconds in zip(held, (60, HOUR, 1), strict=True)][1]
    assert db.value("SELECT max(until) FROM rests WHERE group_key = 'a' AND until > now()") == when(longest["run_at"])


def test_several_of_one_call(api: Api, db: TestDatabase) -> None:
    for group in "ab":
        api.enqueue_many(3, group=group)
    held = [job for job in api.claim(max_jobs=6)["jobs"] if job["id"]]
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
    assert resting(db, api) == 2
    assert api.settle(items[0])["results"][0]["status"] == "already_settled"


def test_a_call_that_could_not_be_answered_is_repeated_and_the_group_rests(api: Api, db: TestDatabase) -> None:
    api.enqueue_many(3, group="a")
    held = api.claim_one()
    lane = db.value("SELECT lane FROM jobs LIMIT 1")
    db.execute("INSERT INTO gates (lane) VALUES ($1) ON CONFLICT DO NOTHING", lane)
    with db.uncommitted("SELECT lane FROM gates WHERE lane = $1 FOR UPDATE", lane):
        assert api.fail(held, scope="group", retry_after_seconds=HOUR, status=503)["outcome"] == "not_done"
    assert api.fail(held, scope="group", retry_after_seconds=HOUR)["status"] == "settled"
    assert api.claim(max_jobs=10)["jobs"] == []


# When its time is over


def test_one_goes_first_and_then_all(cool: Cooling, db: TestDatabase) -> None:
    rest_over(db)
    cool.api.complete(cool.probe())
    assert cool.all_done()
    assert cool.api.counts()["completed"] >= 4
    wait_until(lambda: resting(db, cool.api) == 0)


def test_in_a_strict_group_the_one_that_failed_goes_first(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    cool = Cooling(api)
    rest_over(db)
    done: list[Json] = []
    while len(done) < 4:
        done.append(api.claim_one(wait_seconds=20))
        api.complete(done[-1])
    assert ids(done) == cool.jobs


def test_if_it_says_the_same_they_all_rest_again(cool: Cooling, db: TestDatabase) -> None:
    for _ in range(3):
        rest_over(db)
        cool.api.fail(cool.probe(), scope="group", retry_after_seconds=HOUR)
        assert cool.hands_out_nothing()
    rest_over(db)
    cool.api.complete(cool.probe())
    assert cool.all_done()


def test_while_it_says_so_no_waiting_poll_gets_another(cool: Cooling, db: TestDatabase, background: Background) -> None:
    api = cool.api
    for number in range(6):
        rest_over(db)
        probe = cool.probe()
        polls = background.claims(3, api)
        wait_until(lambda: parked(api.http) == 3)
        api.fail(probe, scope="group", retry_after_seconds=HOUR)
        api.batch(*[{"group": f"other-{number}-{poll}"} for poll in range(3)])
        taken = [job for poll in polls for job in poll.result(20)["jobs"]]
        assert "a" not in [job["group"] for job in taken]
        for job in taken:
            api.complete(job)


@pytest.mark.parametrize(
    "back",
    [
        lambda api, job, expire: api.release(job),
        lambda api, job, expire: api.snooze(job, 0),
        lambda api, job, expire: api.fail(job, retry_after_seconds=0),
        lambda api, job, expire: expire(job),
    ],
    ids=["release", "snooze", "failure of its own", "expiry"],
)
def test_if_it_comes_back_one_goes_first_again(
    cool: Cooling, db: TestDatabase, expire: Expire, back: Callable[[Api, Json, Expire], object]
) -> None:
    rest_over(db)
    back(cool.api, cool.probe(), expire)
    cool.api.complete(cool.probe())
    assert cool.all_done()


@pytest.mark.parametrize(
    "end",
    [
        lambda api, job: api.fail(job, retryable=False),
        lambda api, job: api.fail(job, retry_after_seconds=HOUR),
        lambda api, job: (api.cancel(job, status=202), api.release(job)),
    ],
    ids=["death", "a retry of its own", "cancel"],
)
def test_if_it_ends_otherwise_the_others_go_on(cool: Cooling, db: TestDatabase, end: Callable[[Api, Json], object]) -> None:
    rest_over(db)
    end(cool.api, cool.probe())
    assert cool.strict or cool.all_done()  # in a strict group they wait for the retry anyway
    db.execute("UPDATE jobs SET run_at = now() WHERE state = 'scheduled'")
    wait_until(lambda: "scheduled" not in cool.api.counts())
    assert cool.all_done()
    wait_until(lambda: resting(db, cool.api) == 0)


@pytest.mark.parametrize("way", ["cancel", "put off", "purge"])
def test_if_nobody_has_begun_it_and_it_goes_another_does(cool: Cooling, db: TestDatabase, way: str) -> None:
    rest_over(db)
    probe = {"id": str(wait_until(lambda: probe_of(db, cool.api)))}
    if way == "cancel":
        cool.api.cancel(probe)
    elif way == "put off":
        cool.api.change(probe, run_at=db.instant(HOUR))
    else:
        cool.api.post(f"/queues/{cool.api.queue}/purge", {"dry_run": False})
        cool.api.enqueue_many(2, group="a")
    wait_until(lambda: resting(db, cool.api) == 0 or probe_of(db, cool.api) not in (None, probe["id"]))
    assert cool.all_done()


def probe_of(db: TestDatabase, api: Api) -> object:
    return db.value("SELECT probe::text FROM rests JOIN queues ON lane / 256 = queues.id WHERE name = $1", api.queue)


def test_a_group_in_which_nobody_is_left_is_forgotten(cool: Cooling, db: TestDatabase) -> None:
    cool.api.post("/jobs/cancel", {"filter": {"queue": cool.api.queue}})
    rest_over(db)
    wait_until(lambda: resting(db, cool.api) == 0)
    job = cool.api.enqueue(group="a")
    assert cool.api.claim_one(wait_seconds=20)["id"] == job["id"]


def test_a_parked_poll_wakes_when_the_time_is_over(lone: Api, background: Background) -> None:
    jobs = lone.enqueue_many(3, group="a")
    told = lone.fail(lone.claim_one(), scope="group", retry_after_seconds=1)
    poll = background.claim(lone)
    probe = poll.result(20)["jobs"][0]
    assert probe["id"] in jobs
    assert when(lone.job(probe["id"])["started_at"]) >= when(told["run_at"])
    others = background.claims(2, lone)
    wait_until(lambda: parked(lone.http) == 2)
    lone.complete(probe)
    assert sorted(job["id"] for poll in others for job in poll.result(20)["jobs"]) == sorted(set(jobs) - {probe["id"]})


# Several brokers


def test_a_broker_that_starts_later_knows_of_it(cool: Cooling, dsn: str, db: TestDatabase) -> None:
    with threaded_broker(QUICK, dsn) as broker:
        second = Api(broker.http, cool.api.queue)
        assert second.claim(max_jobs=10)["jobs"] == []
        assert second.enqueue(group="a")["state"] == "ready"
        rest_over(db)
        probe = second.claim_one(max_jobs=10, wait_seconds=20)
        assert cool.hands_out_nothing()
        second.complete(probe)
    assert cool.all_done()


def test_another_broker_hears_of_it(api: Api, second: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=3)
    cool = Cooling(second)
    assert Cooling.hands_out_nothing(cool)
    rest_over(db)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    assert cool.all_done()


def test_many_others_in_front_do_not_hide_it(api: Api, db: TestDatabase) -> None:
    """Jobs of the group that were ready already are behind more than are looked through."""
    api.enqueue_many(2, group="a", priority=9)
    first = api.claim_one()
    api.enqueue_many(20, group="b", priority=5)
    api.enqueue_many(3, group="a")
    api.fail(first, scope="group", retry_after_seconds=HOUR)
    rest_over(db)
    assert len([job for job in api.claim(max_jobs=100, wait_seconds=20)["jobs"] if job["group"] == "a"]) <= 1
