"""Several brokers on one database behave like one broker."""

from collections import Counter
from functools import partial

import pytest

from tests.api_client import Api
from tests.concurrency.processes.wake_ups import WakeUps
from tests.polls import Background


def test_lease_of_one_process_is_valid_on_all(first_api: Api, second_api: Api, third_api: Api) -> None:
    job = first_api.enqueue(payload={"n": 1})
    held = second_api.claim_one(worker_id="w")
    assert held["id"] == job["id"]
    assert third_api.heartbeat("w", held)["leases"][0]["status"] == "extended"
    assert third_api.complete(held, result=2)["status"] == "settled"
    assert second_api.complete(held)["status"] == "already_settled"
    assert first_api.job(job["id"])["result"] == 2


def test_claim_with_a_key_can_be_repeated_on_another_process(first_api: Api, second_api: Api) -> None:
    for _ in range(4):
        first_api.enqueue()
    first = first_api.claim(key="k", max_jobs=3)
    assert second_api.claim(key="k", max_jobs=3)["jobs"] == first["jobs"]


def test_claims_with_one_key_on_three_processes_get_the_same_leases(
    first_api: Api, second_api: Api, third_api: Api, background: Background
) -> None:
    for number in range(10):
        for _ in range(6):
            first_api.enqueue()
        calls = [
            partial(api.claim, key=f"k{number}", max_jobs=2)
            for api in (first_api, second_api, third_api, first_api, second_api, third_api)
        ]
        responses = [response["jobs"] for response in background.together(*calls)]
        assert len(responses[0]) == 2
        assert responses == [responses[0]] * 6


def test_enqueues_with_one_key_on_two_processes_create_one_job(
    first_api: Api, second_api: Api, background: Background
) -> None:
    for number in range(10):
        body = {"queue": first_api.queue, "job_type": "t"}
        calls = [
            partial(api.post, "/jobs", body, status=201, key=f"e{number}")
            for api in (first_api, second_api, first_api, second_api)
        ]
        assert len({job["id"] for job in background.together(*calls)}) == 1


def test_claims_on_several_processes_never_return_the_same_job(
    first_api: Api, second_api: Api, third_api: Api, background: Background
) -> None:
    first_api.post("/jobs/batch", {"jobs": [{"queue": first_api.queue, "job_type": "t"}] * 600}, status=201)

    def claim_all(api: Api) -> list[str]:
        claimed: list[str] = []
        while jobs := api.claim(max_jobs=7)["jobs"]:
            claimed += [job["id"] for job in jobs]
            api.settle(
                *[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
            )
        return claimed

    counts = Counter(
        job
        for claimed in background.together(*[partial(claim_all, api) for api in (first_api, second_api, third_api)] * 2)
        for job in claimed
    )
    counts.update(claim_all(first_api))
    assert len(counts) == 600
    assert set(counts.values()) == {1}


class TestPolling(WakeUps):
    @pytest.fixture
    def poller_api(self, third_api: Api) -> Api:
        return third_api
