"""on_duplicate: replace.

The waiting job gets a new body and keeps its id, its age and its group.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.unique_keys.keys import with_key
from tests.api_client import Api, Json, parse_time
from tests.conftest import wait_until
from tests.database import TestDatabase

BODY: Json = {
    "job_type": "other",
    "payload": {"n": 2},
    "priority": 7,
    "max_attempts": 2,
    "tags": ["new"],
    "metadata": {"from": "b"},
}
Expire = Callable[[Json], None]


def replace(api: Api, *, status: int = 200, **fields: Any) -> Json:
    return api.enqueue(status=status, **with_key(on_duplicate="replace", **fields))


def test_replace_returns_the_waiting_job_with_its_new_body(api: Api) -> None:
    first = api.enqueue(**with_key(payload={"n": 1}, group="g", tags=["old"]))
    response = api.http.post("/jobs", json={"queue": api.queue, **BODY, **with_key(on_duplicate="replace")})
    assert (response.status_code, response.headers["job-duplicate"]) == (200, "true")
    again = response.json()
    assert again == first | BODY | {"run_at": again["run_at"]}
    assert api.job(first["id"]) == again
    assert api.counts() == {"ready": 1}


def test_replaced_job_runs_with_the_new_body(api: Api) -> None:
    first = api.enqueue(**with_key(payload=1, lease_seconds=10, timeout_seconds=100))
    replace(api, payload=2, lease_seconds=30, timeout_seconds=20)
    claimed = api.claim_one()
    assert (claimed["id"], claimed["payload"], claimed["lease_seconds"], "deadline_at" in claimed) == (
        first["id"],
        2,
        20,
        True,
    )
    api.complete(claimed)
    assert api.claim()["jobs"] == []


def test_replaced_job_gets_defaults_for_absent_fields(api: Api) -> None:
    api.enqueue(**with_key(**BODY, lease_seconds=10, timeout_seconds=100))
    again = replace(api)
    assert (again["payload"], again["priority"], again["max_attempts"], again["tags"], again["metadata"]) == (
        {},
        0,
        5,
        [],
        {},
    )
    assert "deadline_at" not in api.claim_one()


def test_replace_creates_the_job_if_the_unique_key_is_free(api: Api) -> None:
    assert replace(api, status=201, payload=1)["payload"] == 1
    assert api.counts() == {"ready": 1}


def test_replaced_job_has_the_trace_of_the_new_producer(api: Api) -> None:
    first, second = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    for trace in (first, second):
        api.http.post(
            "/jobs",
            json={"queue": api.queue, "job_type": "test", **with_key(on_duplicate="replace")},
            headers={"traceparent": trace},
        )
    assert api.claim_one()["traceparent"] == second


def test_replaced_job_keeps_its_group(api: Api) -> None:
    first = api.enqueue(**with_key(group="g"))
    assert replace(api, group="h")["group"] == "g"
    assert replace(api)["group"] == "g"
    assert api.claim_one()["id"] == first["id"]


def test_replaced_job_keeps_its_age(api: Api) -> None:
    first = api.enqueue(**with_key())
    second = api.enqueue()
    assert replace(api, payload=2)["created_at"] == first["created_at"]
    assert [job["id"] for job in api.claim(max_jobs=2)["jobs"]] == [first["id"], second["id"]]


def test_running_job_is_not_replaced(api: Api) -> None:
    first = api.enqueue(**with_key(payload=1))
    claimed = api.claim_one()
    again = replace(api, payload=2, delay_seconds=60)
    assert (again["id"], again["state"], again["payload"]) == (first["id"], "running", 1)
    assert api.complete(claimed)["state"] == "completed"
    assert api.counts() == {"completed": 1}


def test_finished_job_within_its_window_is_not_replaced(api: Api) -> None:
    first = api.enqueue(**with_key(payload=1, for_seconds=60))
    api.complete(api.claim_one(), result="done")
    again = replace(api, payload=2)
    assert (again["id"], again["state"], again["payload"], again["result"]) == (first["id"], "completed", 1, "done")


def test_repeated_replacements_debounce_a_job(api: Api) -> None:
    """Debounce: only the last request and its run_at count."""
    first = api.enqueue(**with_key(payload=0, delay_seconds=60))
    for n in range(1, 4):
        again = replace(api, payload=n, delay_seconds=60 + n)
        assert (again["id"], again["state"], again["payload"]) == (first["id"], "scheduled", n)
        assert parse_time(again["run_at"]) > parse_time(first["run_at"])
    assert api.counts() == {"scheduled": 1}


def test_replace_can_postpone_a_ready_job_and_advance_a_scheduled_one(api: Api) -> None:
    first = api.enqueue(**with_key())
    assert replace(api, delay_seconds=3600)["state"] == "scheduled"
    assert api.counts() == {"scheduled": 1}
    assert api.claim()["jobs"] == []
    assert replace(api)["state"] == "ready"
    assert api.counts() == {"ready": 1}
    assert api.claim_one()["id"] == first["id"]


def test_replace_that_makes_a_job_ready_wakes_a_poller(api: Api, background: Any) -> None:
    first = api.enqueue(**with_key(delay_seconds=3600))
    poller = background.claim(api)
    replace(api)
    assert [job["id"] for job in poller.result(20)["jobs"]] == [first["id"]]


def test_replace_with_a_short_delay_wakes_a_poller_on_time(api: Api, background: Any) -> None:
    first = api.enqueue(**with_key(delay_seconds=3600))
    poller = background.claim(api)
    replace(api, delay_seconds=1)
    assert [job["id"] for job in poller.result(20)["jobs"]] == [first["id"]]


def test_replaced_retry_loses_its_state_reason_and_keeps_its_attempts(api: Api) -> None:
    api.enqueue(**with_key())
    api.fail(api.claim_one(), "first")
    again = replace(api, payload=2)
    assert (again["state"], "state_reason" in again, again["attempt"]) == ("ready", False, 1)
    assert [attempt["error"]["message"] for attempt in api.attempts(again)] == ["first"]
    assert api.claim_one()["attempt"] == 2


def test_replaced_job_loses_its_checkpoint_and_progress(api: Api) -> None:
    api.enqueue(**with_key(payload="old file"))
    claimed = api.claim_one()
    api.heartbeat_one(claimed, progress={"percent": 50}, checkpoint={"row": 500})
    api.fail(claimed)
    replace(api, payload="new file")
    assert not {"checkpoint", "progress"} & api.claim_one().keys()


def test_late_settlement_of_the_old_body_is_rejected(api: Api, expire: Expire) -> None:
    first = api.enqueue(**with_key(payload="old"))
    claimed = api.claim_one()
    expire(claimed)
    replace(api, payload="new")
    assert api.complete(claimed, status=409)["code"] == "lease_lost"
    assert (api.job(first["id"])["state"], api.claim_one()["payload"]) == ("ready", "new")


def test_repeated_settlement_of_the_old_body_is_already_settled(api: Api) -> None:
    api.enqueue(**with_key())
    claimed = api.claim_one()
    api.fail(claimed)
    replace(api, delay_seconds=60)
    assert api.fail(claimed)["status"] == "already_settled"


def test_replaced_job_has_a_new_start_deadline(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**with_key(expires_at=db.instant(60)))
    replace(api)
    db.execute("UPDATE jobs SET expires_at = expires_at - interval '1 hour'")
    assert api.claim_one()["id"] == first["id"]


def test_postponed_replacement_frees_its_admission(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(**with_key(group="g"))
    second = api.enqueue(group="g")
    wait_until(lambda: db.value("SELECT admission FROM jobs WHERE id = $1", first["id"]))
    replace(api, group="g", delay_seconds=3600)
    assert api.claim_one(wait_seconds=20)["id"] == second["id"]


def test_replacement_without_delay_waits_for_admission(api: Api) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(**with_key(group="g", delay_seconds=3600))
    api.enqueue(group="g")
    claimed = api.claim_one(wait_seconds=20)
    assert replace(api)["state"] == "ready"
    assert api.claim()["jobs"] == []
    api.complete(claimed)
    assert api.claim_one(wait_seconds=20)["id"] == first["id"]


def test_replaced_job_keeps_its_admission(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(**with_key(group="g"))
    api.enqueue(group="g")
    wait_until(lambda: db.value("SELECT admission FROM jobs WHERE id = $1", first["id"]))
    replace(api, payload=2)
    assert api.claim_one(wait_seconds=20)["id"] == first["id"]
    assert api.claim()["jobs"] == []


@pytest.mark.parametrize("delay", [0, 3600], ids=["ready", "scheduled"])
def test_fair_queue_delivers_a_replaced_job_once(api: Api, delay: int) -> None:
    api.configure(fair=True)
    first = api.enqueue(**with_key(group="g", delay_seconds=delay))
    replace(api, payload=2)
    assert api.claim_one(wait_seconds=20)["payload"] == 2
    assert api.claim()["jobs"] == []
    assert api.job(first["id"])["state"] == "running"


def test_replaced_blocked_job_stays_blocked(api: Api) -> None:
    parent = api.enqueue(job_type="parent")
    first = api.enqueue(**with_key(payload=1, depends_on=[parent["id"]]))
    again = replace(api, payload=2)
    assert (again["id"], again["state"], again["state_reason"]) == (first["id"], "blocked", "waiting_for_jobs")
    assert (again["payload"], again["depends_on"]) == (2, [parent["id"]])
    assert api.counts() == {"ready": 1, "blocked": 1}
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["payload"] == 2


def test_replace_with_depends_on_is_rejected(api: Api) -> None:
    parent = api.enqueue()
    problem = replace(api, status=422, depends_on=[parent["id"]])
    assert [error["pointer"] for error in problem["errors"]] == ["/unique/on_duplicate"]
