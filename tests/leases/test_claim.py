"""POST /claim."""

from tests.api import Api


def test_a_claim_hands_out_a_ready_job_under_a_lease(api: Api) -> None:
    job = api.enqueue(payload={"to": "ada"})
    claimed = api.claim_one(worker_id="w1")
    assert claimed["id"] == job["id"]
    assert claimed["payload"] == {"to": "ada"}
    assert api.job(job["id"])["state"] == "running"


def test_a_claim_without_jobs_is_an_empty_list(api: Api) -> None:
    assert api.claim()["jobs"] == []
