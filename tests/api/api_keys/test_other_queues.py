"""Jobs of queues that a key may not access are invisible: by id, in bodies, in filters and in lists
(OWASP API1).
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.api_keys.conftest import Callers
from tests.api_client import Api, Json
from tests.database import TestDatabase

MISSING = "01a1e24b-7875-7000-8000-4007af56e171"


@pytest.fixture
def other_queue(callers: Callers) -> str:
    """A queue that `own_api` may not access."""
    return f"{callers.admin.queue}-foreign"


@pytest.fixture
def limited_api(callers: Callers) -> Api:
    """A client with all scopes for the queue of this test."""
    return callers.api(*[f"{scope}:{callers.admin.queue}" for scope in ("enqueue", "work", "read", "manage")])


@pytest.fixture
def other_api(callers: Callers, other_queue: str) -> Api:
    """A client with access to the other queue."""
    return Api(callers.admin.http, other_queue)


def normalized(response: Json, job_id: str) -> Json:
    """A problem without the parts that differ between any two calls."""
    return {name: str(value).replace(job_id, "ID") for name, value in response.items() if name != "instance"}


CALLS: dict[str, tuple[str, str, Json | None]] = {
    "get": ("GET", "/jobs/{}", None),
    "attempts": ("GET", "/jobs/{}/attempts", None),
    "explain": ("GET", "/jobs/{}/explain", None),
    "patch": ("PATCH", "/jobs/{}", {"priority": 9}),
    "cancel": ("POST", "/jobs/{}/cancel", {}),
    "run now": ("POST", "/jobs/{}/run-now", None),
    "heartbeat": ("POST", "/jobs/{}/heartbeat", {"lease_token": MISSING}),
    "complete": ("POST", "/jobs/{}/complete", {"lease_token": MISSING}),
    "fail": ("POST", "/jobs/{}/fail", {"lease_token": MISSING, "error": {"message": "x"}}),
    "snooze": ("POST", "/jobs/{}/snooze", {"lease_token": MISSING, "delay_seconds": 1}),
    "release": ("POST", "/jobs/{}/release", {"lease_token": MISSING}),
    "dead letter": ("GET", "/dead-letters/{}", None),
    "replay": ("POST", "/dead-letters/{}/replay", None),
}


@pytest.mark.parametrize("name", CALLS)
def test_job_of_another_queue_is_answered_like_a_missing_job(name: str, limited_api: Api, other_api: Api) -> None:
    method, path, body = CALLS[name]
    job = other_api.dead_letter() if path.startswith("/dead-letters") else other_api.enqueue()
    responses = [limited_api.http.request(method, path.format(job_id), json=body) for job_id in (job["id"], MISSING)]
    assert [response.status_code for response in responses] == [404, 404]
    assert normalized(responses[0].json(), job["id"]) == normalized(responses[1].json(), MISSING)
    assert other_api.job(job["id"])["state"] == ("dead" if path.startswith("/dead-letters") else "ready")


@pytest.mark.parametrize("spelling", ["{0}", "{{{0}}}", "urn:uuid:{0}"])
def test_no_spelling_of_a_job_id_bypasses_access_control(spelling: str, limited_api: Api, other_api: Api) -> None:
    job_id = other_api.enqueue()["id"]
    for text in (job_id, job_id.upper(), job_id.replace("-", "")):
        assert limited_api.http.get(f"/jobs/{spelling.format(text)}").status_code in (404, 422)


def test_known_lease_token_neither_settles_nor_extends_a_job_of_another_queue(limited_api: Api, other_api: Api) -> None:
    other_api.enqueue()
    lease = other_api.claim_one(worker_id="w")
    for verb, fields in {"complete": {}, "release": {}, "snooze": {"delay_seconds": 1}, "heartbeat": {}}.items():
        limited_api.post(f"/jobs/{lease['id']}/{verb}", {"lease_token": lease["lease_token"], **fields}, status=404)
    item = {"job_id": lease["id"], "lease_token": lease["lease_token"], "outcome": "complete"}
    assert limited_api.settle(item)["results"] == [{"job_id": lease["id"], "status": "not_found"}]
    assert limited_api.claim(settle=[item])["settled"] == [{"job_id": lease["id"], "status": "not_found"}]
    assert limited_api.heartbeat("w", lease)["leases"] == [
        {"job_id": lease["id"], "status": "lost", "action": "abandon"}
    ]
    assert other_api.job(lease["id"])["lease_expires_at"] == lease["lease_expires_at"]
    assert other_api.complete(lease)["status"] == "settled"


def test_settle_call_with_jobs_of_own_and_other_queues_settles_only_own_jobs(limited_api: Api, other_api: Api) -> None:
    other_api.enqueue()
    limited_api.enqueue()
    jobs = [other_api.claim_one(), limited_api.claim_one()]
    items = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
    assert [result["status"] for result in limited_api.settle(*items)["results"]] == ["not_found", "settled"]
    assert other_api.job(jobs[0]["id"])["state"] == "running"


def test_heartbeat_with_a_shared_worker_id_releases_no_lease_of_another_queue(
    limited_api: Api, other_api: Api, key_db: TestDatabase
) -> None:
    """`holds_all` with an empty list reports all leases as lost: only leases of accessible queues
    are released.
    """
    other_api.enqueue()
    limited_api.enqueue()
    kept, lost = other_api.claim_one(worker_id="shared"), limited_api.claim_one(worker_id="shared")
    for job in (kept, lost):
        key_db.age(job["id"], 10)
    released = [limited_api.heartbeat("shared", holds_all=True)["released"] for _ in range(3)]
    assert released == [[], [lost["id"]], []]
    assert key_db.value("SELECT unreported_since FROM jobs WHERE id = $1", kept["id"]) is None
    assert other_api.job(kept["id"])["state"] == "running"


def test_lists_contain_only_accessible_queues(limited_api: Api, other_api: Api) -> None:
    dead, accessible_job = limited_api.dead_letter(), limited_api.enqueue()
    other_api.enqueue()
    other_api.dead_letter()
    assert {job["id"] for job in limited_api.get("/jobs")["items"]} == {accessible_job["id"], dead["id"]}
    assert [letter["id"] for letter in limited_api.get("/dead-letters")["items"]] == [dead["id"]]
    assert [queue["name"] for queue in limited_api.get("/queues")["items"]] == [limited_api.queue]
    (group,) = limited_api.get("/dead-letters/groups", by="queue,fingerprint")["items"]
    assert (group["queue"], group["count"], group["sample"]) == (limited_api.queue, 1, dead["id"])
    assert [item["count"] for item in limited_api.get("/dead-letters/groups", by="fingerprint")["items"]] == [1]


def test_pages_contain_only_accessible_queues_and_have_no_gaps(limited_api: Api, other_api: Api) -> None:
    """Not even as gaps."""
    for api in (limited_api, other_api, limited_api, other_api, other_api, limited_api):
        api.enqueue()
        api.dead_letter()
    assert [len(page) for page in limited_api.pages("/dead-letters", limit=2)] == [2, 1]
    assert [len(page) for page in limited_api.pages("/jobs", limit=2)] == [2, 2, 2]


def test_statistics_count_only_accessible_queues(limited_api: Api, other_api: Api) -> None:
    limited_api.enqueue()
    other_api.enqueue_many(3)
    other_api.claim(queues=["empty"], worker_id="w1")
    other_api.get("/workers")
    for stats in (limited_api.get("/stats"), limited_api.stats()):
        assert (stats["counts"]["ready"], stats["workers"]) == (1, 0)
    assert other_api.get("/stats")["workers"] > 0
    assert other_api.get("/stats")["counts"]["ready"] == 4


@pytest.mark.parametrize("path", ["/jobs", "/dead-letters", "/dead-letters/groups"])
def test_list_filter_for_another_queue_is_forbidden(path: str, limited_api: Api, other_queue: str) -> None:
    problem = limited_api.get(path, queue=other_queue, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/query/queue"]


@pytest.mark.parametrize("path", ["/jobs/cancel", "/dead-letters/replay", "/dead-letters/purge"])
def test_bulk_action_with_a_filter_for_another_queue_is_forbidden(
    path: str, limited_api: Api, other_queue: str
) -> None:
    problem = limited_api.post(path, {"filter": {"queue": other_queue}, "dry_run": False}, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/filter/queue"]


def test_bulk_cancel_leaves_jobs_of_other_queues_alone(limited_api: Api, other_api: Api) -> None:
    accessible_job, other_job = limited_api.enqueue(tags=["x"]), other_api.enqueue(tags=["x"])
    assert limited_api.post("/jobs/cancel", {"ids": [other_job["id"], MISSING], "dry_run": True})["matched"] == 0
    assert limited_api.post("/jobs/cancel", {"ids": [accessible_job["id"], other_job["id"]]})["sample"] == [
        accessible_job["id"]
    ]
    second_broker = limited_api.enqueue(tags=["x"])
    assert limited_api.post("/jobs/cancel", {"filter": {"tag": "x"}})["sample"] == [second_broker["id"]]
    assert other_api.job(other_job["id"])["state"] == "ready"


@pytest.mark.parametrize("selector", ["ids", "filter"])
def test_replay_and_purge_leave_dead_letters_of_other_queues_alone(
    selector: str, limited_api: Api, other_api: Api
) -> None:
    accessible_job, other_job = limited_api.dead_letter(), other_api.dead_letter()
    selection: Json = (
        {"ids": [other_job["id"], accessible_job["id"]]}
        if selector == "ids"
        else {"filter": {"reason": "not_retryable"}}
    )
    assert limited_api.post("/dead-letters/replay", {**selection, "dry_run": True}) == {
        "matched": 1,
        "replayed": 0,
        "remaining": 1,
        "dry_run": True,
        "sample": [accessible_job["id"]],
    }
    assert limited_api.post("/dead-letters/purge", {**selection, "dry_run": False}) == {"matched": 1, "purged": 1}
    assert limited_api.post("/dead-letters/replay", selection)["matched"] == 0
    assert other_api.job(other_job["id"])["state"] == "dead"


def test_replay_into_another_queue_is_forbidden(limited_api: Api, other_queue: str) -> None:
    dead = limited_api.dead_letter()
    problem = limited_api.post(
        "/dead-letters/replay", {"ids": [dead["id"]], "overrides": {"queue": other_queue}}, status=403
    )
    assert [fault["pointer"] for fault in problem["errors"]] == ["/overrides/queue"]
    assert limited_api.job(dead["id"])["state"] == "dead"


def test_dependency_on_a_job_of_another_queue_is_rejected_like_a_missing_parent(
    limited_api: Api, other_api: Api
) -> None:
    other_job = other_api.enqueue()["id"]
    problems = [limited_api.enqueue(depends_on=[parent], status=422) for parent in (other_job, MISSING)]
    assert normalized(problems[0] | {"errors": str(problems[0]["errors"])}, other_job) == normalized(
        problems[1] | {"errors": str(problems[1]["errors"])}, MISSING
    )
    assert limited_api.get("/jobs")["items"] == []


def test_non_atomic_batch_rejects_only_jobs_that_depend_on_another_queue(limited_api: Api, other_api: Api) -> None:
    other_job = other_api.enqueue()["id"]
    first, second, third = limited_api.batch(
        {"depends_on": [other_job], "ref": "a"}, {"depends_on": ["a"]}, {}, atomic=False, status=207
    )["results"]
    assert [result["status"] for result in (first, second, third)] == ["rejected", "rejected", "created"]
    assert first["problem"]["errors"][0]["code"] == "unknown_job"
    assert [job["id"] for job in limited_api.get("/jobs")["items"]] == [third["job_id"]]


def test_atomic_batch_with_one_inaccessible_queue_stores_nothing(
    limited_api: Api, other_queue: str, key_db: TestDatabase
) -> None:
    problem = limited_api.batch({}, {"queue": other_queue}, {}, status=403)
    assert [(fault["pointer"], fault["code"]) for fault in problem["errors"]] == [("/jobs/1/queue", "forbidden")]
    assert key_db.rows("SELECT FROM jobs") == []
    assert key_db.rows("SELECT FROM queues WHERE name = $1", other_queue) == []


def test_non_atomic_batch_with_one_inaccessible_queue_stores_the_other_jobs(
    limited_api: Api, other_queue: str, key_db: TestDatabase
) -> None:
    response = limited_api.batch({}, {"queue": other_queue}, {}, atomic=False, status=207)
    assert [result["status"] for result in response["results"]] == ["created", "rejected", "created"]
    rejected = response["results"][1]["problem"]
    assert (rejected["status"], rejected["code"], rejected["errors"][0]["pointer"]) == (
        403,
        "forbidden",
        "/jobs/1/queue",
    )
    assert key_db.rows("SELECT FROM queues WHERE name = $1", other_queue) == []


def test_claim_of_an_inaccessible_queue_is_forbidden_and_settles_nothing(limited_api: Api, other_queue: str) -> None:
    limited_api.enqueue()
    lease = limited_api.claim_one()
    item = {"job_id": lease["id"], "lease_token": lease["lease_token"], "outcome": "complete"}
    problem = limited_api.post("/claim", {"queues": [limited_api.queue, other_queue], "settle": [item]}, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/queues/1"]
    assert limited_api.job(lease["id"])["state"] == "running"


def test_pointer_to_an_inaccessible_queue_counts_names_that_are_listed_twice(
    limited_api: Api, other_queue: str
) -> None:
    problem = limited_api.post("/claim", {"queues": [limited_api.queue] * 2 + [other_queue]}, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/queues/2"]


def test_default_queue_needs_access_like_any_other(limited_api: Api) -> None:
    assert limited_api.post("/jobs", {"job_type": "test"}, status=403)["errors"][0]["pointer"] == "/queue"
    assert limited_api.post("/claim", {}, status=403)["errors"][0]["pointer"] == "/queues/0"


@pytest.fixture
def schedule(other_api: Api) -> str:
    name = f"{other_api.queue}-nightly"
    other_api.put(f"/schedules/{name}", {"every_seconds": 3600, "job": {"queue": other_api.queue, "job_type": "test"}})
    return name


def test_schedule_of_another_queue_is_answered_like_a_missing_schedule(
    limited_api: Api, schedule: str, key_db: TestDatabase
) -> None:
    before = key_db.rows("SELECT * FROM schedules")
    calls: list[Callable[[str], Any]] = [
        lambda name: limited_api.get(f"/schedules/{name}", status=404),
        lambda name: limited_api.delete(f"/schedules/{name}", status=404),
        *[
            lambda name, verb=verb: limited_api.post(f"/schedules/{name}/{verb}", status=404)
            for verb in ("run", "pause", "resume")
        ],
    ]
    for call in calls:
        assert normalized(call(schedule), schedule) == normalized(call("missing"), "missing")
    assert limited_api.get("/schedules")["items"] == []
    assert key_db.rows("SELECT * FROM schedules") == before
    assert key_db.rows("SELECT FROM jobs") == []


def test_bulk_action_on_all_matches_only_accessible_queues(limited_api: Api, other_api: Api) -> None:
    waiting, dead = other_api.enqueue(), other_api.dead_letter(queue=f"{other_api.queue}-dead")
    limited_api.enqueue()
    limited_api.dead_letter(queue=limited_api.queue)
    assert limited_api.post("/dead-letters/purge", {"all": True, "dry_run": False})["purged"] == 1
    assert limited_api.post("/jobs/cancel", {"all": True})["matched"] == 1
    assert [other_api.job(job["id"])["state"] for job in (waiting, dead)] == ["ready", "dead"]


def test_schedule_of_another_queue_can_be_neither_created_nor_taken_over(
    limited_api: Api, schedule: str, other_queue: str
) -> None:
    definition: Json = {"every_seconds": 60, "job": {"queue": other_queue, "job_type": "test"}}
    assert (
        limited_api.put(f"/schedules/{limited_api.queue}", definition, status=403)["errors"][0]["pointer"]
        == "/job/queue"
    )
    rejected = limited_api.put(
        f"/schedules/{schedule}", {**definition, "job": {"queue": limited_api.queue, "job_type": "test"}}, status=404
    )
    assert normalized(rejected, schedule) == normalized(limited_api.get("/schedules/missing", status=404), "missing")
    limited_api.put(
        f"/schedules/{limited_api.queue}", {**definition, "job": {"queue": limited_api.queue, "job_type": "test"}}
    )
    assert [item["name"] for item in limited_api.get("/schedules")["items"]] == [limited_api.queue]
