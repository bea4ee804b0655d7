"""When the rest of a group is over one job goes first; what becomes of it decides for the others."""

from collections.abc import Callable

import pytest

from tests.api import Api, Json, when
from tests.broker import threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import TestDatabase
from tests.limits.conftest import Expire, ids
from tests.limits.cooling import HOUR, Cooling, rest_over, resting
from tests.polls import Background, parked


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
def test_if_it_ends_otherwise_the_others_go_on(
    cool: Cooling, db: TestDatabase, end: Callable[[Api, Json], object]
) -> None:
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


def test_a_rest_that_is_over_at_once_ends_with_one_that_goes_first_too(api: Api) -> None:
    """Those that were ready when it began have not been parked by anybody yet."""
    api.enqueue_many(5, group="a")
    api.fail(api.claim_one(), scope="group", retryable=False)
    api.complete(api.claim_one(max_jobs=10, wait_seconds=20))
    taken: list[Json] = []
    while len(taken) < 3:
        taken += api.claim(max_jobs=10, wait_seconds=20)["jobs"]
    assert api.counts() == {"dead": 1, "completed": 1, "running": 3}
