"""Paused queues: no job is delivered; polls wait during the pause and are woken by resume."""

from collections.abc import Iterator

import pytest

from tests.api.concurrency.conftest import Worker
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.polls import Background, parked_polls


@pytest.fixture(params=[{}, {"max_running": 5}, {"max_running_per_group": 1}, {"fair": True}], ids=str)
def paused(request: pytest.FixtureRequest, isolated_api: Api) -> Api:
    """A paused queue of every kind."""
    isolated_api.configure(**request.param)
    isolated_api.pause()
    return isolated_api


def test_poll_waits_during_a_pause_and_is_woken_by_resume(paused: Api, background: Background) -> None:
    first, second = (paused.enqueue(group=group)["id"] for group in "ab")
    assert paused.claim(max_jobs=5)["jobs"] == []
    polls = background.claims(2, paused)
    wait_until(lambda: parked_polls(paused.http) == 2)
    paused.resume()
    assert sorted(job["id"] for poll in polls for job in poll.result(20)["jobs"]) == sorted([first, second])


def test_job_enqueued_during_a_pause_wakes_no_poll(paused: Api, background: Background) -> None:
    polls = background.claims(2, paused, queues=[paused.queue, f"{paused.queue}-2"])
    wait_until(lambda: parked_polls(paused.http) == 2)
    job = paused.enqueue(group="a")
    other = paused.enqueue(queue=f"{paused.queue}-2")
    wait_until(lambda: sum(poll.done() for poll in polls) == 1)
    paused.resume()
    assert {job["id"] for poll in polls for job in poll.result(20)["jobs"]} == {job["id"], other["id"]}


def test_running_job_continues_during_a_pause_and_waits_once_released(api: Api, worker: Worker) -> None:
    api.configure(max_running_per_group=1)
    first, second = api.enqueue_many(2, group="a")
    held = worker.claim_expected(first)
    api.pause()
    assert api.heartbeat_one(held)["status"] == "extended"
    api.release(held)
    assert api.claim(max_jobs=9)["jobs"] == []
    api.resume()
    worker.complete_in_order(first, second)


def test_claim_of_several_queues_skips_paused_ones(api: Api) -> None:
    names = [api.queue, f"{api.queue}-2"]
    for name in names:
        api.enqueue(queue=name)
    api.pause()
    assert [job["queue"] for job in api.claim(queues=names, max_jobs=5)["jobs"]] == names[1:]


@pytest.fixture(params=[True, False], ids=["by notification", "by polling"])
def other_api(request: pytest.FixtureRequest, api: Api, dsn: str) -> Iterator[Api]:
    with threaded_broker(TEST_SETTINGS.model_copy(update={"notify": request.param}), dsn) as broker:
        yield Api(broker.http, api.queue)


def test_pause_and_resume_reach_another_broker(api: Api, other_api: Api, background: Background) -> None:
    api.enqueue_many(2)
    api.pause()
    wait_until(lambda: count_claimable(other_api) == 0)
    poll = background.claim(other_api)
    wait_until(lambda: parked_polls(other_api.http) == 1)
    api.resume()
    assert len(poll.result(20)["jobs"]) == 1


def count_claimable(api: Api) -> int:
    """Returns how many jobs can be claimed, and releases them again."""
    jobs = api.claim(max_jobs=9)["jobs"]
    for job in jobs:
        api.release(job)
    return len(jobs)
