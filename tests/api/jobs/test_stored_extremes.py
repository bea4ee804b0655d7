"""Jobs with instants of minus infinity can be read and run.

Earlier releases accepted such instants, so some databases contain them.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api
from tests.database import TestDatabase


def failures(api: Api) -> float:
    """The failures of all periodic services."""
    counts = re.findall(r"^longshore_service_failures_total\{.*\} (\S+)$", api.http.get("/metrics").text, re.MULTILINE)
    return sum(map(float, counts))


@pytest.mark.parametrize("config", [{}, {"fair": True}], ids=["ready", "pending"])
def test_job_due_since_minus_infinity_can_be_read_and_run(api: Api, db: TestDatabase, config: dict[str, Any]) -> None:
    api.configure(**config)
    job = api.enqueue()
    db.execute("UPDATE jobs SET run_at = '-infinity' WHERE id = $1", job["id"])
    for path in ("/stats", f"/queues/{api.queue}/stats", "/jobs", f"/jobs/{job['id']}", f"/jobs/{job['id']}/explain"):
        api.get(path)
    claimed = api.claim_one(wait_seconds=5)
    api.get("/stats")
    api.release(claimed)
    assert api.complete(api.claim_one(wait_seconds=5))["state"] == "completed"


def test_job_that_expired_at_minus_infinity_does_not_stop_the_periodic_check(
    api: Api, db: TestDatabase, eventually: Callable[..., Any]
) -> None:
    before = failures(api)
    for _ in range(3):
        job = api.enqueue()
        db.execute("UPDATE jobs SET expires_at = '-infinity' WHERE id = $1", job["id"])
        eventually(lambda job=job: api.job(job["id"])["state"] == "dead")
    assert failures(api) == before
