"""Claims against claims: no job is claimed twice, none is left behind."""

from collections import Counter
from functools import partial

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.database import TestDatabase
from tests.polls import Background, RawClaim


def fill(api: Api, count: int) -> None:
    for start in range(0, count, 500):
        jobs = [
            {"queue": api.queue, "job_type": "t", "priority": number % 3}
            for number in range(start, min(count, start + 500))
        ]
        api.post("/jobs/batch", {"jobs": jobs}, status=201)


def claim_all(api: Api, max_jobs: int, key: str | None = None) -> list[str]:
    """Claims until no job is left."""
    claimed: list[str] = []
    while jobs := api.claim(max_jobs=max_jobs, key=f"{key}-{len(claimed)}" if key else None)["jobs"]:
        claimed += [job["id"] for job in jobs]
    return claimed


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "with keys"])
def test_concurrent_claims_never_return_the_same_job(
    api: Api, db: TestDatabase, background: Background, keyed: bool
) -> None:
    fill(api, 400)
    calls = [partial(claim_all, api, 1 + number * 3, f"worker-{number}" if keyed else None) for number in range(6)]
    counts = Counter(job for claimed in background.together(*calls) for job in claimed)
    left = claim_all(api, 1000)  # an empty claim may have skipped rows that others had locked
    assert set(counts.values()) == {1}
    assert len(counts) + len(left) == 400
    assert db.value("SELECT count(*) FROM jobs WHERE state = 'running' AND attempt = 1 AND deliveries = 1") == 400


def test_concurrent_pollers_and_producers_lose_no_job(api: Api, background: Background) -> None:
    """Wake-ups race with pollers that come and go: every job is claimed, none twice."""
    polls = background.claims(30, api, max_jobs=2)
    background.together(*[partial(fill, api, 10)] * 6)
    claimed = [job["id"] for poll in polls for job in poll.result(30)["jobs"]]
    remaining = claim_all(api, 100)
    assert len(set(claimed + remaining)) == len(claimed + remaining) == 60


def test_repeated_claim_and_its_disconnected_original_get_one_lease(
    api: Api, broker: RunningBroker, background: Background
) -> None:
    for number in range(30):
        job, key = api.enqueue(), f"key-{number}"
        original = RawClaim(broker.base, {"queues": [api.queue]}, key=key)
        original.cut()
        first, second = background.together(*[partial(api.claim_one, key=key)] * 2)
        assert first["lease_token"] == second["lease_token"]
        assert (first["id"], first["deliveries"]) == (job["id"], 1)
        assert api.complete(first)["status"] == "settled"


def test_no_lease_is_lost_when_every_client_disconnects(api: Api, broker: RunningBroker, db: TestDatabase) -> None:
    fill(api, 60)
    for number in range(60):
        RawClaim(broker.base, {"queues": [api.queue]}, key=f"cut-{number}").cut()
    claimed = [api.claim_one(key=f"cut-{number}") for number in range(60)]
    assert len({job["id"] for job in claimed}) == 60
    assert db.value("SELECT max(deliveries) FROM jobs") == 1


def test_claim_against_cancel_of_a_ready_job_has_one_outcome(api: Api, background: Background) -> None:
    for _ in range(30):
        job = api.enqueue()
        claim, cancel = background.together(
            partial(api.http.post, "/claim", json={"queues": [api.queue]}),
            partial(api.http.post, f"/jobs/{job['id']}/cancel"),
        )
        claimed = claim.json()["jobs"]
        assert (len(claimed), cancel.status_code) in [(0, 200), (1, 202)]
        assert api.job(job["id"])["state"] == ("running" if claimed else "cancelled")
        if claimed:
            assert api.release(claimed[0])["state"] == "cancelled"
