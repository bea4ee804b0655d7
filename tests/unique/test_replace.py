"""on_duplicate: replace. The waiting job gets another body; its id, its age and its group stay."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json, when
from tests.conftest import wait_until
from tests.database import TestDatabase
from tests.unique.keys import has

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
    return api.enqueue(status=status, **has(on_duplicate="replace", **fields))


def test_the_waiting_job_is_told_with_its_new_body(api: Api) -> None:
    first = api.enqueue(**has(payload={"n": 1}, group="g", tags=["old"]))
    response = api.http.post("/jobs", json={"queue": api.queue, **BODY, **has(on_duplicate="replace")})
    assert (response.status_code, response.headers["job-duplicate"]) == (200, "true")
    again = response.json()
    assert again == first | BODY | {"run_at": again["run_at"]}
    assert api.job(first["id"]) == again
    assert api.counts() == {"ready": 1}


def test_the_new_body_is_what_runs(api: Api) -> None:
    first = api.enqueue(**has(payload=1, lease_seconds=10, timeout_seconds=100))
    replace(api, payload=2, lease_seconds=30, timeout_seconds=20)
    held = api.claim_one()
    assert (held["id"], held["payload"], held["lease_seconds"], "deadline_at" in held) == (first["id"], 2, 20, True)
    api.complete(held)
    assert api.claim()["jobs"] == []


def test_what_the_new_one_does_not_say_falls_back_to_the_defaults(api: Api) -> None:
    api.enqueue(**has(**BODY, lease_seconds=10, timeout_seconds=100))
    again = replace(api)
    assert (again["payload"], again["priority"], again["max_attempts"], again["tags"], again["metadata"]) == (
        {},
        0,
        5,
        [],
        {},
    )
    assert "deadline_at" not in api.claim_one()


def test_if_nobody_has_the_key_the_job_is_created(api: Api) -> None:
    assert replace(api, status=201, payload=1)["payload"] == 1
    assert api.counts() == {"ready": 1}


def test_the_trace_of_the_new_producer_goes_with_the_new_body(api: Api) -> None:
    first, second = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    for trace in (first, second):
        api.http.post(
            "/jobs",
            json={"queue": api.queue, "job_type": "test", **has(on_duplicate="replace")},
            headers={"traceparent": trace},
        )
    assert api.claim_one()["traceparent"] == second


def test_the_group_stays(api: Api) -> None:
    first = api.enqueue(**has(group="g"))
    assert replace(api, group="h")["group"] == "g"
    assert replace(api)["group"] == "g"
    assert api.claim_one()["id"] == first["id"]


def test_the_age_stays(api: Api) -> None:
    first = api.enqueue(**has())
    second = api.enqueue()
    assert replace(api, payload=2)["created_at"] == first["created_at"]
    assert [job["id"] for job in api.claim(max_jobs=2)["jobs"]] == [first["id"], second["id"]]


def test_a_running_job_is_left_alone(api: Api) -> None:
    first = api.enqueue(**has(payload=1))
    held = api.claim_one()
    again = replace(api, payload=2, delay_seconds=60)
    assert (again["id"], again["state"], again["payload"]) == (first["id"], "running", 1)
    assert api.complete(held)["state"] == "completed"
    assert api.counts() == {"completed": 1}


def test_a_job_that_ended_within_the_window_is_left_alone(api: Api) -> None:
    first = api.enqueue(**has(payload=1, for_seconds=60))
    api.complete(api.claim_one(), result="done")
    again = replace(api, payload=2)
    assert (again["id"], again["state"], again["payload"], again["result"]) == (first["id"], "completed", 1, "done")


def test_a_job_is_put_off_again_and_again(api: Api) -> None:
    """Debounce: only the last of many requests counts, and its time."""
    first = api.enqueue(**has(payload=0, delay_seconds=60))
    for n in range(1, 4):
        again = replace(api, payload=n, delay_seconds=60 + n)
        assert (again["id"], again["state"], again["payload"]) == (first["id"], "scheduled", n)
        assert when(again["run_at"]) > when(first["run_at"])
    assert api.counts() == {"scheduled": 1}


def test_a_ready_job_can_be_put_off_and_a_delayed_one_hurried(api: Api) -> None:
    first = api.enqueue(**has())
    assert replace(api, delay_seconds=3600)["state"] == "scheduled"
    assert api.counts() == {"scheduled": 1}
    assert api.claim()["jobs"] == []
    assert replace(api)["state"] == "ready"
    assert api.counts() == {"ready": 1}
    assert api.claim_one()["id"] == first["id"]


def test_a_hurried_job_wakes_a_poll(api: Api, background: Any) -> None:
    first = api.enqueue(**has(delay_seconds=3600))
    poll = background.claim(api)
    replace(api)
    assert [job["id"] for job in poll.result(20)["jobs"]] == [first["id"]]


def test_a_new_time_that_is_near_rings_the_alarm(api: Api, background: Any) -> None:
    first = api.enqueue(**has(delay_seconds=3600))
    poll = background.claim(api)
    replace(api, delay_seconds=1)
    assert [job["id"] for job in poll.result(20)["jobs"]] == [first["id"]]


def test_a_retry_loses_its_reason_and_keeps_its_account(api: Api) -> None:
    api.enqueue(**has())
    api.fail(api.claim_one(), "first")
    again = replace(api, payload=2)
    assert (again["state"], "state_reason" in again, again["attempt"]) == ("ready", False, 1)
    assert [attempt["error"]["message"] for attempt in api.attempts(again)] == ["first"]
    assert api.claim_one()["attempt"] == 2


def test_what_was_noted_for_the_old_body_does_not_go_with_the_new_one(api: Api) -> None:
    api.enqueue(**has(payload="old file"))
    held = api.claim_one()
    api.heartbeat_one(held, progress={"percent": 50}, checkpoint={"row": 500})
    api.fail(held)
    replace(api, payload="new file")
    assert not {"checkpoint", "progress"} & api.claim_one().keys()


def test_a_late_word_about_the_old_body_does_not_end_the_new_one(api: Api, expire: Expire) -> None:
    first = api.enqueue(**has(payload="old"))
    held = api.claim_one()
    expire(held)
    replace(api, payload="new")
    assert api.complete(held, status=409)["code"] == "lease_lost"
    assert (api.job(first["id"])["state"], api.claim_one()["payload"]) == ("ready", "new")


def test_a_repeated_settlement_of_the_old_body_is_still_known(api: Api) -> None:
    api.enqueue(**has())
    held = api.claim_one()
    api.fail(held)
    replace(api, delay_seconds=60)
    assert api.fail(held)["status"] == "already_settled"


def test_a_replaced_job_has_a_new_time_to_be_begun_by(api: Api, db: TestDatabase) -> None:
    first = api.enqueue(**has(expires_at=db.instant(60)))
    replace(api)
    db.execute("UPDATE jobs SET expires_at = expires_at - interval '1 hour'")
    assert api.claim_one()["id"] == first["id"]


def test_a_job_that_is_put_off_gives_its_turn_away(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(**has(group="g"))
    second = api.enqueue(group="g")
    wait_until(lambda: db.value("SELECT turn FROM jobs WHERE id = $1", first["id"]))
    replace(api, group="g", delay_seconds=3600)
    assert api.claim_one(wait_seconds=20)["id"] == second["id"]


def test_a_job_that_is_hurried_waits_for_its_turn(api: Api) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(**has(group="g", delay_seconds=3600))
    api.enqueue(group="g")
    held = api.claim_one(wait_seconds=20)
    assert replace(api)["state"] == "ready"
    assert api.claim()["jobs"] == []
    api.complete(held)
    assert api.claim_one(wait_seconds=20)["id"] == first["id"]


def test_a_job_that_has_its_turn_keeps_it(api: Api, db: TestDatabase) -> None:
    api.configure(max_running_per_group=1)
    first = api.enqueue(**has(group="g"))
    api.enqueue(group="g")
    wait_until(lambda: db.value("SELECT turn FROM jobs WHERE id = $1", first["id"]))
    replace(api, payload=2)
    assert api.claim_one(wait_seconds=20)["id"] == first["id"]
    assert api.claim()["jobs"] == []


@pytest.mark.parametrize("delay", [0, 3600], ids=["at once", "later"])
def test_a_fair_queue_hands_out_a_replaced_job_once(api: Api, delay: int) -> None:
    api.configure(fair=True)
    first = api.enqueue(**has(group="g", delay_seconds=delay))
    replace(api, payload=2)
    assert api.claim_one(wait_seconds=20)["payload"] == 2
    assert api.claim()["jobs"] == []
    assert api.job(first["id"])["state"] == "running"


def test_a_job_that_waits_for_others_is_replaced_and_waits_on(api: Api) -> None:
    parent = api.enqueue(job_type="parent")
    first = api.enqueue(**has(payload=1, depends_on=[parent["id"]]))
    again = replace(api, payload=2)
    assert (again["id"], again["state"], again["state_reason"]) == (first["id"], "blocked", "waiting_for_jobs")
    assert (again["payload"], again["depends_on"]) == (2, [parent["id"]])
    assert api.counts() == {"ready": 1, "blocked": 1}
    api.complete(api.claim_one())
    assert api.claim_one(wait_seconds=20)["payload"] == 2


def test_replace_does_not_go_with_depends_on(api: Api) -> None:
    parent = api.enqueue()
    problem = replace(api, status=422, depends_on=[parent["id"]])
    assert [error["pointer"] for error in problem["errors"]] == ["/unique/on_duplicate"]
