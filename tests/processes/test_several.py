"""Several brokers on one database are one broker."""

from collections import Counter
from functools import partial

import pytest

from tests.api import Api
from tests.polls import Background
from tests.processes.wake_ups import WakeUps


def test_a_job_lives_across_processes(one: Api, two: Api, three: Api) -> None:
    job = one.enqueue(payload={"n": 1})
    held = two.claim_one(worker_id="w")
    assert held["id"] == job["id"]
    assert three.heartbeat("w", held)["leases"][0]["status"] == "extended"
    assert three.complete(held, result=2)["status"] == "settled"
    assert two.complete(held)["status"] == "already_settled"
    assert one.job(job["id"])["result"] == 2


def test_a_claim_is_repeated_on_another_process(one: Api, two: Api) -> None:
    for _ in range(4):
        one.enqueue()
    first = one.claim(key="k", max_jobs=3)
    assert two.claim(key="k", max_jobs=3)["jobs"] == first["jobs"]


def test_claims_with_one_key_on_three_processes_get_one_set(
    one: Api, two: Api, three: Api, background: Background
) -> None:
    for turn in range(10):
        for _ in range(6):
            one.enqueue()
        calls = [partial(api.claim, key=f"k{turn}", max_jobs=2) for api in (one, two, three, one, two, three)]
        answers = [answer["jobs"] for answer in background.together(*calls)]
        assert len(answers[0]) == 2
        assert answers == [answers[0]] * 6


def test_an_enqueue_key_on_two_processes_makes_one_job(one: Api, two: Api, background: Background) -> None:
    for turn in range(10):
        body = {"queue": one.queue, "job_type": "t"}
        calls = [partial(api.post, "/jobs", body, status=201, key=f"e{turn}") for api in (one, two, one, two)]
        assert len({job["id"] for job in background.together(*calls)}) == 1


def test_claimers_on_several_processes_never_share_a_job(
    one: Api, two: Api, three: Api, background: Background
) -> None:
    one.post("/jobs/batch", {"jobs": [{"queue": one.queue, "job_type": "t"}] * 600}, status=201)

    def take_all(api: Api) -> list[str]:
        taken: list[str] = []
        while jobs := api.claim(max_jobs=7)["jobs"]:
            taken += [job["id"] for job in jobs]
            api.settle(
                *[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
            )
        return taken

    hands = Counter(
        job
        for taken in background.together(*[partial(take_all, api) for api in (one, two, three)] * 2)
        for job in taken
    )
    hands.update(take_all(one))
    assert len(hands) == 600
    assert set(hands.values()) == {1}


class TestPolling(WakeUps):
    @pytest.fixture
    def there(self, three: Api) -> Api:
        return three
