"""A paused queue hands out nothing; polls wait through the pause and are woken when it ends."""

from collections.abc import Iterator

import pytest

from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK, wait_until
from tests.limits.conftest import Worker
from tests.polls import Background, parked


@pytest.fixture(params=[{}, {"max_running": 5}, {"max_running_per_group": 1}, {"fair": True}], ids=str)
def paused(request: pytest.FixtureRequest, lone: Api) -> Api:
    """In every kind of queue."""
    lone.configure(**request.param)
    lone.pause()
    return lone


def test_a_poll_waits_through_the_pause_and_is_woken_by_its_end(paused: Api, background: Background) -> None:
    first, second = (paused.enqueue(group=group)["id"] for group in "ab")
    assert paused.claim(max_jobs=5)["jobs"] == []
    polls = background.claims(2, paused)
    wait_until(lambda: parked(paused.http) == 2)
    paused.resume()
    assert sorted(job["id"] for poll in polls for job in poll.result(20)["jobs"]) == sorted([first, second])


def test_a_job_that_comes_meanwhile_wakes_nobody(paused: Api, background: Background) -> None:
    polls = background.claims(2, paused, queues=[paused.queue, f"{paused.queue}-2"])
    wait_until(lambda: parked(paused.http) == 2)
    job = paused.enqueue(group="a")
    other = paused.enqueue(queue=f"{paused.queue}-2")
    wait_until(lambda: sum(poll.done() for poll in polls) == 1)
    paused.resume()
    assert {job["id"] for poll in polls for job in poll.result(20)["jobs"]} == {job["id"], other["id"]}


def test_who_runs_goes_on_and_what_comes_back_waits(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    first, second = api.enqueue_many(2, group="a")
    held = worker.takes(first)
    api.pause()
    assert api.heartbeat_one(held)["status"] == "extended"
    api.release(held)
    assert api.claim(max_jobs=9)["jobs"] == []
    api.resume()
    worker.does(first, second)


def test_a_claim_of_several_queues_takes_from_those_that_are_not_paused(api: Api) -> None:
    names = [api.queue, f"{api.queue}-2"]
    for name in names:
        api.enqueue(queue=name)
    api.pause()
    assert [job["queue"] for job in api.claim(queues=names, max_jobs=5)["jobs"]] == names[1:]


@pytest.fixture(params=[True, False], ids=["told by notify", "found by looking"])
def elsewhere(request: pytest.FixtureRequest, api: Api, dsn: str) -> Iterator[Api]:
    with threaded_broker(QUICK.model_copy(update={"notify": request.param}), dsn) as broker:
        yield Api(broker.http, api.queue)


def test_a_pause_and_its_end_are_heard_elsewhere(api: Api, elsewhere: Api, background: Background) -> None:
    api.enqueue_many(2)
    api.pause()
    wait_until(lambda: given_back(elsewhere) == 0)
    poll = background.claim(elsewhere)
    wait_until(lambda: parked(elsewhere.http) == 1)
    api.resume()
    assert len(poll.result(20)["jobs"]) == 1


def given_back(api: Api) -> int:
    """How many can be had; they are released again."""
    jobs = api.claim(max_jobs=9)["jobs"]
    for job in jobs:
        api.release(job)
    return len(jobs)
