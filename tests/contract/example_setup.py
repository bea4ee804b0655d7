"""Creates over HTTP the state that each example in openapi/examples needs.

The ids of the examples are replaced by the real ones.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.paths import ROOT

EXAMPLES = ROOT / "openapi" / "examples"

# The ids of the job, of its lease token and of its worker in the examples.
JOB = "01a1e24b-7875-7000-8000-4007af56e171"
TOKEN = "8fe3b876-dc43-7745-d0aa-545ec3e6b021"
WORKER = "mail-7f9c"
QUEUE = "email"
SEND: Json = {
    "queue": QUEUE,
    "job_type": "email.send",
    "payload": {"to": "ada@example.com", "template": "welcome"},
    "tags": ["signup"],
    "metadata": {"tenant": "acme"},
}

SCHEDULE: Json = {
    "cron": "30 1 * * *",
    "timezone": "Europe/Berlin",
    "job": {"queue": "reports", "job_type": "report.build", "payload": {"kind": "daily"}, "tags": ["nightly"]},
    "misfire": "once",
    "overlap": "skip",
}
NIGHTLY = "/schedules/nightly-report"

# The queue in the examples of configuration. Each test uses a queue of its own instead.
CONFIGURED = "invoices"

# The id of the API key in the examples.
API_KEY = "3f1c9a7d5b2e8046"
# Sent to a broker of their own: see conftest.py.
KEY_EXAMPLES = {"create_api_key", "list_api_keys", "get_api_key", "revoke_api_key"}

Ids = dict[str, str]
Setup = Callable[[Api], Ids]
_numbers = itertools.count(1)


def nothing(_api: Api) -> Ids:
    return {}


def waiting(api: Api) -> Ids:
    return {JOB: api.enqueue(**SEND)["id"]}


def scheduled(api: Api) -> Ids:
    return {JOB: api.enqueue(**SEND, delay_seconds=600)["id"]}


def running(api: Api) -> Ids:
    """Claims with a worker of its own: one that another test has stopped would get nothing."""
    waiting(api)
    worker = f"mail-{next(_numbers)}"
    claimed = api.claim_one(queues=[QUEUE], worker_id=worker)
    return {JOB: claimed["id"], TOKEN: claimed["lease_token"], WORKER: worker}


def running_with_another_waiting(api: Api) -> Ids:
    ids = running(api)
    waiting(api)
    return ids


def completed(api: Api) -> Ids:
    ids = running(api)
    api.post(f"/jobs/{ids[JOB]}/complete", {"lease_token": ids[TOKEN], "result": {"message_id": "m-1"}})
    return ids


def failed_once(api: Api) -> Ids:
    api.enqueue(**SEND, retry={"base_seconds": 0})
    worker = f"mail-{next(_numbers)}"
    first = api.claim_one(queues=[QUEUE], worker_id=worker)
    api.fail(first, error={"message": "connection refused by 10.0.0.7", "error_type": "SmtpError"})
    again = api.claim_one(queues=[QUEUE], worker_id=worker, wait_seconds=20)
    return {JOB: again["id"], TOKEN: again["lease_token"], WORKER: worker}


def dead(api: Api) -> Ids:
    ids = running(api)
    error = {"message": "mailbox 4711 does not exist", "error_type": "SmtpError"}
    api.post(f"/jobs/{ids[JOB]}/fail", {"lease_token": ids[TOKEN], "error": error, "retryable": False})
    return ids


def worker_listed(api: Api) -> Ids:
    ids = running(api)
    assert ids[WORKER] in [worker["worker_id"] for worker in api.get("/workers")["items"]]
    return ids


def waiting_and_completed(api: Api) -> Ids:
    """Waits for the durations, which the example has and which are written once a second."""
    ids = completed(api)
    waiting(api)
    wait_until(lambda: {"wait_time", "run_time"} <= api.get(f"/queues/{QUEUE}/stats").keys())
    return ids


def two_queues(api: Api) -> Ids:
    api.enqueue()
    return waiting(api)


def configured(api: Api) -> Ids:
    api.configure(**example("put_queue")["request"]["body"])
    return {CONFIGURED: api.queue}


def configured_with_a_job(api: Api) -> Ids:
    ids = configured(api)
    api.enqueue()
    return ids


def no_schedule(api: Api) -> Ids:
    api.http.delete(NIGHTLY)
    return {}


def scheduled_nightly(api: Api) -> Ids:
    no_schedule(api)
    api.put(NIGHTLY, SCHEDULE)
    return {}


def nightly_has_run(api: Api) -> Ids:
    scheduled_nightly(api)
    return {JOB: api.post(f"{NIGHTLY}/run", status=201)["id"]}


def nightly_is_paused(api: Api) -> Ids:
    ids = nightly_has_run(api)
    api.post(f"{NIGHTLY}/pause")
    return ids


def nightly_has_run_with_a_unique_key(api: Api) -> Ids:
    no_schedule(api)
    job = {**SCHEDULE["job"], "unique": {"key": "nightly-report"}}
    api.put(NIGHTLY, {**SCHEDULE, "job": job})
    return {JOB: api.post(f"{NIGHTLY}/run", status=201)["id"]}


def polled_and_scheduled(api: Api) -> Ids:
    api.claim(queues=[QUEUE])
    return scheduled(api)


def with_a_unique_key(api: Api) -> Ids:
    return {JOB: api.enqueue(**SEND, unique={"key": "welcome-ada"})["id"]}


def job_type_exists(api: Api) -> Ids:
    """Job types outlive a test, so no other test uses this one."""
    api.put("/job-types/invoice.send", example("put_job_type")["request"]["body"])
    return {}


def no_other_job_type_exists(api: Api) -> Ids:
    """Deletes the job types that other tests have left behind, because the response in the example
    has no next page."""
    job_type_exists(api)
    for job_type in api.get("/job-types", limit=1000)["items"]:
        if job_type["name"] != "invoice.send":
            api.delete(f"/job-types/{job_type['name']}")
    return {}


def api_key_exists(api: Api) -> Ids:
    """Uses a new name, because a name has at most two active keys."""
    body = example("create_api_key")["request"]["body"]
    return {API_KEY: api.post("/api-keys", {**body, "name": f"mail-workers-{next(_numbers)}"}, status=201)["id"]}


SETUPS: dict[str, Setup] = {
    "enqueue_job": nothing,
    "enqueue_job.200": with_a_unique_key,
    "enqueue_jobs": nothing,
    "enqueue_jobs.207": nothing,
    "list_jobs": waiting,
    "get_job": completed,
    "update_job": scheduled,
    "cancel_job": waiting,
    "cancel_job.202": running,
    "cancel_jobs": waiting,
    "run_job_now": scheduled,
    "list_attempts": failed_once,
    "explain_job": polled_and_scheduled,
    "claim_jobs": running_with_another_waiting,
    "heartbeat_leases": running,
    "heartbeat_job": running,
    "complete_job": running,
    "fail_job": running,
    "snooze_job": running,
    "release_job": running,
    "settle_jobs": running,
    "list_workers": worker_listed,
    "drain_worker": worker_listed,
    "stop_worker": worker_listed,
    "resume_worker": worker_listed,
    "list_dead_letters": dead,
    "group_dead_letters": dead,
    "get_dead_letter": dead,
    "replay_dead_letter": dead,
    "replay_dead_letters": dead,
    "purge_dead_letters": dead,
    "list_queues": two_queues,
    "get_queue": configured,
    "put_queue": configured,
    "update_queue": configured,
    "delete_queue": configured,
    "pause_queue": configured,
    "resume_queue": configured,
    "purge_queue": configured_with_a_job,
    "put_schedule": no_schedule,
    "get_schedule": nightly_has_run,
    "list_schedules": nightly_has_run,
    "delete_schedule": nightly_has_run,
    "run_schedule": scheduled_nightly,
    "run_schedule.200": nightly_has_run_with_a_unique_key,
    "pause_schedule": nightly_has_run,
    "resume_schedule": nightly_is_paused,
    "preview_schedule": nothing,
    "list_job_types": no_other_job_type_exists,
    "get_job_type": job_type_exists,
    "put_job_type": job_type_exists,
    "delete_job_type": job_type_exists,
    "create_api_key": nothing,
    "list_api_keys": api_key_exists,
    "get_api_key": api_key_exists,
    "revoke_api_key": api_key_exists,
    "get_stats": waiting_and_completed,
    "get_queue_stats": waiting_and_completed,
    "get_liveness": nothing,
    "get_readiness": nothing,
    "get_limits": nothing,
    "get_metrics": nothing,
}


def example(name: str) -> Json:
    loaded: Json = json.loads((EXAMPLES / f"{name}.json").read_text())
    return loaded


def with_real_ids(value: Any, ids: Ids) -> Any:
    text = json.dumps(value)
    for example_id, real_id in ids.items():
        text = text.replace(example_id, real_id)
    return json.loads(text)
