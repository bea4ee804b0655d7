"""Claims against claims: no job in two hands, none left behind."""

from collections import Counter
from functools import partial

import pytest

from tests.api import Api
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
    """Claims until there is nothing left."""
    taken: list[str] = []
    while jobs := api.claim(max_jobs=max_jobs, key=f"{key}-{len(taken)}" if key else None)["jobs"]:
        taken += [job["id"] for job in jobs]
    return taken


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "with keys"])
def test_claimers_never_share_a_job(api: Api, db: TestDatabase, background: Background, keyed: bool) -> None:
    fill(api, 400)
    takers = [partial(claim_all, api, 1 + number * 3, f"worker-{number}" if keyed else None) for number in range(6)]
    hands = Counter(job for taken in background.together(*takers) for job in taken)
    left = claim_all(api, 1000)  # an empty look may have been at rows that others had locked
    assert set(hands.values()) == {1}
    assert len(hands) + len(left) == 400
    assert db.value("SELECT count(*) FROM jobs WHERE state = 'running' AND attempt = 1 AND deliveries = 1") == 400


def test_parked_polls_and_producers_lose_nothing(api: Api, background: Background) -> None:
    """Wake-ups race with polls that come and go: every job is taken, none twice."""
    polls = background.claims(30, api, max_jobs=2)
    background.together(*[partial(fill, api, 10)] * 6)
    taken = [job["id"] for poll in polls for job in poll.result(30)["jobs"]]
    rest = claim_all(api, 100)
    assert len(set(taken + rest)) == len(taken + rest) == 60


def test_a_repeated_claim_and_its_cut_original_get_one_lease(
    api: Api, broker: RunningBroker, background: Background
) -> None:
    for turn in range(30):
        job, key = api.enqueue(), f"key-{turn}"
        original = RawClaim(broker.base, {"queues": [api.queue]}, key=key)
        original.cut()
        first, second = background.together(*[partial(api.claim_one, key=key)] * 2)
        assert first["lease_token"] == second["lease_token"]
        assert (first["id"], first["deliveries"]) == (job["id"], 1)
        assert api.complete(first)["status"] == "settled"


def test_no_lease_is_lost_when_every_answer_is_cut(api: Api, broker: RunningBroker, db: TestDatabase) -> None:
    fill(api, 60)
    for number in range(60):
        RawClaim(broker.base, {"queues": [api.queue]}, key=f"cut-{number}").cut()
    taken = [api.claim_one(key=f"cut-{number}") for number in range(60)]
    assert len({job["id"] for job in taken}) == 60
    assert db.value("SELECT max(deliveries) FROM jobs") == 1


def test_a_claim_and_a_cancel_of_a_waiting_job(api: Api, background: Background) -> None:
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
