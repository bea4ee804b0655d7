"""Concurrent enqueues with unique keys: a key has one job, and no call deadlocks."""

import random
from collections import Counter
from functools import partial

import pytest

from tests.api.unique_keys.keys import count_jobs, with_key
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.polls import Background


def test_concurrent_enqueues_with_one_unique_key_create_one_job(
    api: Api, db: TestDatabase, background: Background
) -> None:
    body = {"queue": api.queue, "job_type": "test", **with_key()}
    answers = background.together(*[partial(api.http.post, "/jobs", json=body)] * 30)
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 29}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert count_jobs(db) == 1


def test_concurrent_enqueues_that_reject_duplicates_create_one_job(
    api: Api, db: TestDatabase, background: Background
) -> None:
    body = {"queue": api.queue, "job_type": "test", **with_key(on_duplicate="reject")}
    answers = background.together(*[partial(api.http.post, "/jobs", json=body)] * 30)
    assert Counter(answer.status_code for answer in answers) == {201: 1, 409: 29}
    assert len({answer.json().get("existing_job_id") or answer.json()["id"] for answer in answers}) == 1
    assert count_jobs(db) == 1


def test_concurrent_replacements_leave_one_job_with_one_of_the_bodies(api: Api, background: Background) -> None:
    first = api.enqueue(**with_key(payload=0, delay_seconds=60))
    calls = [
        partial(api.enqueue, status=200, **with_key(payload=n, delay_seconds=n % 2 * 60, on_duplicate="replace"))
        for n in range(1, 21)
    ]
    assert {job["id"] for job in background.together(*calls)} == {first["id"]}
    job = api.job(first["id"])
    assert api.counts() == {job["state"]: 1}
    assert job["state"] == ("scheduled" if job["payload"] % 2 else "ready")


@pytest.mark.slow
def test_batches_with_the_same_unique_keys_in_different_orders_do_not_deadlock(
    api: Api, db: TestDatabase, background: Background
) -> None:
    keys = [f"k{n}" for n in range(60)]

    def shuffled(seed: int) -> list[Json]:
        order = random.Random(seed).sample(keys, 50)
        return [with_key(key, on_duplicate="replace" if seed % 2 else "return_existing") for key in order]

    answers = background.together(*[partial(api.batch, *shuffled(seed)) for seed in range(16)])
    assert (
        sum(answer["created"] for answer in answers)
        == len({job["unique_key"] for job in api.get("/jobs", limit=1000)["items"]})
        == 60
    )
    assert count_jobs(db) == 60


@pytest.mark.slow
def test_batches_that_replace_jobs_do_not_deadlock_with_cancellations(api: Api, background: Background) -> None:
    """Every transaction locks its jobs in the order of their ids."""
    for _ in range(3):
        job_ids = [
            result["job_id"]
            for result in api.batch(*[with_key(f"k{n}", delay_seconds=60) for n in range(40)])["results"]
        ]
        replacing = [with_key(f"k{n}", payload=2, delay_seconds=60, on_duplicate="replace") for n in range(40)]
        calls = [partial(api.batch, *replacing[:: 1 if n % 2 else -1]) for n in range(4)]
        background.together(*calls, *[partial(api.post, "/jobs/cancel", {"ids": job_ids[n::2]}) for n in range(2)])
        api.post(f"/queues/{api.queue}/purge", {"dry_run": False})


def test_concurrent_claim_and_replacement_agree_on_the_body(api: Api, background: Background) -> None:
    """Either the new body runs, or the running job is not replaced."""
    for round_number in range(10):
        api.enqueue(**with_key(payload="old"))
        claim, replaced = background.together(
            partial(api.claim, wait_seconds=20),
            partial(api.enqueue, status=200, **with_key(payload="new", on_duplicate="replace")),
        )
        (claimed,) = claim["jobs"]
        assert api.job(claimed["id"])["payload"] == claimed["payload"] == replaced["payload"], round_number
        api.complete(claimed)


def test_concurrent_completion_and_enqueue_create_a_job_or_a_duplicate(api: Api, background: Background) -> None:
    for _ in range(10):
        first = api.enqueue(**with_key())
        claimed = api.claim_one()
        body = {"queue": api.queue, "job_type": "test", **with_key()}
        completion = background.submit(api.complete, claimed)
        answer = api.http.post("/jobs", json=body)
        completion.result(20)
        assert (answer.status_code == 200) == (answer.json()["id"] == first["id"])
        api.post(f"/queues/{api.queue}/purge", {"dry_run": False})


def test_two_brokers_create_one_job_for_a_unique_key(
    broker: RunningBroker, api: Api, dsn: str, db: TestDatabase, background: Background
) -> None:
    with threaded_broker(TEST_SETTINGS, dsn) as second:
        other = Api(second.http, api.queue)
        for round_number in range(10):
            calls = [
                partial(client.batch, with_key(f"k{round_number}"), with_key("common"))
                for client in (api, other, api, other)
            ]
            answers = background.together(*calls)
            assert len({tuple(result["job_id"] for result in answer["results"]) for answer in answers}) == 1
    assert count_jobs(db) == 11
