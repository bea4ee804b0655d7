"""Somebody else's jobs: by their ids, in bodies, in filters and in lists they are as good as not there (OWASP API1)."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json
from tests.api_keys.conftest import Callers
from tests.database import TestDatabase

MISSING = "01a1e24b-7875-7000-8000-4007af56e171"


@pytest.fixture
def foreign(callers: Callers) -> str:
    """A queue that `own` does not reach."""
    return f"{callers.admin.queue}-foreign"


@pytest.fixture
def own(callers: Callers) -> Api:
    """Who may do everything, in the queue of this test."""
    return callers.api(*[f"{scope}:{callers.admin.queue}" for scope in ("enqueue", "work", "read", "manage")])


@pytest.fixture
def theirs(callers: Callers, foreign: str) -> Api:
    """Who reaches the other queue."""
    return Api(callers.admin.http, foreign)


def told(answer: Json, job_id: str) -> Json:
    """A problem without what differs between any two calls."""
    return {name: str(value).replace(job_id, "ID") for name, value in answer.items() if name != "instance"}


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
def test_a_foreign_job_is_answered_like_one_that_is_not_there(name: str, own: Api, theirs: Api) -> None:
    method, path, body = CALLS[name]
    there = theirs.dead() if path.startswith("/dead-letters") else theirs.enqueue()
    answers = [own.http.request(method, path.format(job_id), json=body) for job_id in (there["id"], MISSING)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert told(answers[0].json(), there["id"]) == told(answers[1].json(), MISSING)
    assert theirs.job(there["id"])["state"] == ("dead" if path.startswith("/dead-letters") else "ready")


@pytest.mark.parametrize("spelling", ["{0}", "{{{0}}}", "urn:uuid:{0}"])
def test_no_spelling_of_an_id_gets_past(spelling: str, own: Api, theirs: Api) -> None:
    job_id = theirs.enqueue()["id"]
    for text in (job_id, job_id.upper(), job_id.replace("-", "")):
        assert own.http.get(f"/jobs/{spelling.format(text)}").status_code in (404, 422)


def test_a_lease_of_a_foreign_job_is_neither_settled_nor_extended_though_its_token_is_known(
    own: Api, theirs: Api
) -> None:
    theirs.enqueue()
    held = theirs.claim_one(worker_id="w")
    for verb, fields in {"complete": {}, "release": {}, "snooze": {"delay_seconds": 1}, "heartbeat": {}}.items():
        own.post(f"/jobs/{held['id']}/{verb}", {"lease_token": held["lease_token"], **fields}, status=404)
    item = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    assert own.settle(item)["results"] == [{"job_id": held["id"], "status": "not_found"}]
    assert own.claim(settle=[item])["settled"] == [{"job_id": held["id"], "status": "not_found"}]
    assert own.heartbeat("w", held)["leases"] == [{"job_id": held["id"], "status": "lost", "action": "abandon"}]
    assert theirs.job(held["id"])["lease_expires_at"] == held["lease_expires_at"]
    assert theirs.complete(held)["status"] == "settled"


def test_foreign_and_own_items_of_one_call_are_told_apart(own: Api, theirs: Api) -> None:
    theirs.enqueue()
    own.enqueue()
    jobs = [theirs.claim_one(), own.claim_one()]
    items = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
    assert [result["status"] for result in own.settle(*items)["results"]] == ["not_found", "settled"]
    assert theirs.job(jobs[0]["id"])["state"] == "running"


def test_a_foreign_worker_id_gives_no_power_over_its_leases(own: Api, theirs: Api, stored: TestDatabase) -> None:
    """`holds_all` with an empty list says that all are lost: only those in queues that the caller reaches are taken back."""
    theirs.enqueue()
    own.enqueue()
    kept, lost = theirs.claim_one(worker_id="shared"), own.claim_one(worker_id="shared")
    for job in (kept, lost):
        stored.age(job["id"], 10)
    released = [own.heartbeat("shared", holds_all=True)["released"] for _ in range(3)]
    assert released == [[], [lost["id"]], []]
    assert stored.value("SELECT missing_since FROM jobs WHERE id = $1", kept["id"]) is None
    assert theirs.job(kept["id"])["state"] == "running"


def test_lists_hold_only_what_is_reached(own: Api, theirs: Api) -> None:
    dead, mine = own.dead(), own.enqueue()
    theirs.enqueue()
    theirs.dead()
    assert {job["id"] for job in own.get("/jobs")["items"]} == {mine["id"], dead["id"]}
    assert [letter["id"] for letter in own.get("/dead-letters")["items"]] == [dead["id"]]
    assert [queue["name"] for queue in own.get("/queues")["items"]] == [own.queue]
    (group,) = own.get("/dead-letters/groups", by="queue,fingerprint")["items"]
    assert (group["queue"], group["count"], group["sample"]) == (own.queue, 1, dead["id"])
    assert [found["count"] for found in own.get("/dead-letters/groups", by="fingerprint")["items"]] == [1]


def test_pages_hold_only_what_is_reached(own: Api, theirs: Api) -> None:
    """Not even as gaps."""
    for api in (own, theirs, own, theirs, theirs, own):
        api.enqueue()
        api.dead()
    assert [len(page) for page in own.pages("/dead-letters", limit=2)] == [2, 1]
    assert [len(page) for page in own.pages("/jobs", limit=2)] == [2, 2, 2]


def test_statistics_count_only_what_is_reached(own: Api, theirs: Api) -> None:
    own.enqueue()
    theirs.enqueue_many(3)
    assert own.get("/stats")["counts"]["ready"] == 1
    assert own.stats()["counts"]["ready"] == 1
    assert theirs.get("/stats")["counts"]["ready"] == 4


@pytest.mark.parametrize("path", ["/jobs", "/dead-letters", "/dead-letters/groups"])
def test_a_filter_for_a_foreign_queue_is_forbidden(path: str, own: Api, foreign: str) -> None:
    problem = own.get(path, queue=foreign, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/query/queue"]


@pytest.mark.parametrize("path", ["/jobs/cancel", "/dead-letters/replay", "/dead-letters/purge"])
def test_a_foreign_queue_in_the_filter_of_an_action_is_forbidden(path: str, own: Api, foreign: str) -> None:
    problem = own.post(path, {"filter": {"queue": foreign}, "dry_run": False}, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/filter/queue"]


def test_cancelling_many_leaves_foreign_jobs_alone(own: Api, theirs: Api) -> None:
    mine, other = own.enqueue(tags=["x"]), theirs.enqueue(tags=["x"])
    assert own.post("/jobs/cancel", {"ids": [other["id"], MISSING], "dry_run": True})["matched"] == 0
    assert own.post("/jobs/cancel", {"ids": [mine["id"], other["id"]]})["sample"] == [mine["id"]]
    another = own.enqueue(tags=["x"])
    assert own.post("/jobs/cancel", {"filter": {"tag": "x"}})["sample"] == [another["id"]]
    assert theirs.job(other["id"])["state"] == "ready"


@pytest.mark.parametrize("chosen", ["ids", "filter"])
def test_replaying_and_purging_leaves_foreign_dead_letters_alone(chosen: str, own: Api, theirs: Api) -> None:
    mine, other = own.dead(), theirs.dead()
    named: Json = {"ids": [other["id"], mine["id"]]} if chosen == "ids" else {"filter": {"reason": "not_retryable"}}
    assert own.post("/dead-letters/replay", {**named, "dry_run": True}) == {
        "matched": 1,
        "replayed": 0,
        "remaining": 1,
        "dry_run": True,
        "sample": [mine["id"]],
    }
    assert own.post("/dead-letters/purge", {**named, "dry_run": False}) == {"matched": 1, "purged": 1}
    assert own.post("/dead-letters/replay", named)["matched"] == 0
    assert theirs.job(other["id"])["state"] == "dead"


def test_a_dead_letter_is_not_replayed_into_a_foreign_queue(own: Api, foreign: str) -> None:
    dead = own.dead()
    problem = own.post("/dead-letters/replay", {"ids": [dead["id"]], "overrides": {"queue": foreign}}, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/overrides/queue"]
    assert own.job(dead["id"])["state"] == "dead"


def test_a_job_that_waits_for_a_foreign_one_is_refused_as_if_that_were_not_there(own: Api, theirs: Api) -> None:
    other = theirs.enqueue()["id"]
    problems = [own.enqueue(depends_on=[parent], status=422) for parent in (other, MISSING)]
    assert told(problems[0] | {"errors": str(problems[0]["errors"])}, other) == told(
        problems[1] | {"errors": str(problems[1]["errors"])}, MISSING
    )
    assert own.get("/jobs")["items"] == []


def test_a_batch_that_is_not_atomic_leaves_out_what_waits_for_a_foreign_job(own: Api, theirs: Api) -> None:
    other = theirs.enqueue()["id"]
    first, second, third = own.batch(
        {"depends_on": [other], "ref": "a"}, {"depends_on": ["a"]}, {}, atomic=False, status=207
    )["results"]
    assert [result["status"] for result in (first, second, third)] == ["rejected", "rejected", "created"]
    assert first["problem"]["errors"][0]["code"] == "unknown_job"
    assert [job["id"] for job in own.get("/jobs")["items"]] == [third["job_id"]]


def test_a_batch_with_one_foreign_queue_stores_nothing(own: Api, foreign: str, stored: TestDatabase) -> None:
    problem = own.batch({}, {"queue": foreign}, {}, status=403)
    assert [(fault["pointer"], fault["code"]) for fault in problem["errors"]] == [("/jobs/1/queue", "forbidden")]
    assert stored.rows("SELECT FROM jobs") == []
    assert stored.rows("SELECT FROM queues WHERE name = $1", foreign) == []


def test_a_batch_that_is_not_atomic_stores_the_others(own: Api, foreign: str, stored: TestDatabase) -> None:
    answer = own.batch({}, {"queue": foreign}, {}, atomic=False, status=207)
    assert [result["status"] for result in answer["results"]] == ["created", "rejected", "created"]
    refused = answer["results"][1]["problem"]
    assert (refused["status"], refused["code"], refused["errors"][0]["pointer"]) == (403, "forbidden", "/jobs/1/queue")
    assert stored.rows("SELECT FROM queues WHERE name = $1", foreign) == []


def test_a_foreign_queue_in_a_claim_is_forbidden_and_nothing_is_settled(own: Api, foreign: str) -> None:
    own.enqueue()
    held = own.claim_one()
    item = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    problem = own.post("/claim", {"queues": [own.queue, foreign], "settle": [item]}, status=403)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/queues/1"]
    assert own.job(held["id"])["state"] == "running"


def test_the_default_queue_is_not_everybodys(own: Api) -> None:
    assert own.post("/jobs", {"job_type": "test"}, status=403)["errors"][0]["pointer"] == "/queue"
    assert own.post("/claim", {}, status=403)["errors"][0]["pointer"] == "/queues/0"


@pytest.fixture
def schedule(theirs: Api) -> str:
    name = f"{theirs.queue}-nightly"
    theirs.put(f"/schedules/{name}", {"every_seconds": 3600, "job": {"queue": theirs.queue, "job_type": "test"}})
    return name


def test_a_foreign_schedule_is_answered_like_one_that_is_not_there(
    own: Api, schedule: str, stored: TestDatabase
) -> None:
    before = stored.rows("SELECT * FROM schedules")
    calls: list[Callable[[str], Any]] = [
        lambda name: own.get(f"/schedules/{name}", status=404),
        lambda name: own.delete(f"/schedules/{name}", status=404),
        *[
            lambda name, verb=verb: own.post(f"/schedules/{name}/{verb}", status=404)
            for verb in ("run", "pause", "resume")
        ],
    ]
    for call in calls:
        assert told(call(schedule), schedule) == told(call("missing"), "missing")
    assert own.get("/schedules")["items"] == []
    assert stored.rows("SELECT * FROM schedules") == before
    assert stored.rows("SELECT FROM jobs") == []


def test_all_matches_only_queues_of_the_key(own: Api, theirs: Api) -> None:
    waiting, dead = theirs.enqueue(), theirs.dead(queue=f"{theirs.queue}-dead")
    own.enqueue()
    own.dead(queue=own.queue)
    assert own.post("/dead-letters/purge", {"all": True, "dry_run": False})["purged"] == 1
    assert own.post("/jobs/cancel", {"all": True})["matched"] == 1
    assert [theirs.job(job["id"])["state"] for job in (waiting, dead)] == ["ready", "dead"]


def test_a_schedule_is_neither_made_for_a_foreign_queue_nor_taken_from_one(
    own: Api, schedule: str, foreign: str
) -> None:
    there: Json = {"every_seconds": 60, "job": {"queue": foreign, "job_type": "test"}}
    assert own.put(f"/schedules/{own.queue}", there, status=403)["errors"][0]["pointer"] == "/job/queue"
    refused = own.put(f"/schedules/{schedule}", {**there, "job": {"queue": own.queue, "job_type": "test"}}, status=404)
    assert told(refused, schedule) == told(own.get("/schedules/missing", status=404), "missing")
    own.put(f"/schedules/{own.queue}", {**there, "job": {"queue": own.queue, "job_type": "test"}})
    assert [found["name"] for found in own.get("/schedules")["items"]] == [own.queue]
