"""The state that each example in openapi/examples needs, made over HTTP; and the examples' ids replaced by the real ones."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api import Api, Json
from tests.conftest import wait_until

EXAMPLES = Path(__file__).parents[2] / "openapi" / "examples"

# What the examples call the job that they are about, its lease, and the worker that holds it.
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

# A queue of its own for each test: brokers go by its configuration.
CONFIGURED = "invoices"

# What the examples call the API key that they are about.
API_KEY = "3f1c9a7d5b2e8046"
KEYED = {
    "create_api_key",
    "list_api_keys",
    "get_api_key",
    "revoke_api_key",
}  # tried on a broker of their own: see conftest.py

Names = dict[str, str]
Arrangement = Callable[[Api], Names]
_numbers = itertools.count(1)


def nothing(_api: Api) -> Names:
    return {}


def waiting(api: Api) -> Names:
    return {JOB: api.enqueue(**SEND)["id"]}


def scheduled(api: Api) -> Names:
    return {JOB: api.enqueue(**SEND, delay_seconds=600)["id"]}


def running(api: Api) -> Names:
    """By a worker of its own: one that was told to stop in another test gets nothing."""
    waiting(api)
    worker = f"mail-{next(_numbers)}"
    claimed = api.claim_one(queues=[QUEUE], worker_id=worker)
    return {JOB: claimed["id"], TOKEN: claimed["lease_token"], WORKER: worker}


def running_with_another_waiting(api: Api) -> Names:
    names = running(api)
    waiting(api)
    return names


def completed(api: Api) -> Names:
    names = running(api)
    api.post(f"/jobs/{names[JOB]}/complete", {"lease_token": names[TOKEN], "result": {"message_id": "m-1"}})
    return names


def failed_once(api: Api) -> Names:
    api.enqueue(**SEND, retry={"base_seconds": 0})
    worker = f"mail-{next(_numbers)}"
    first = api.claim_one(queues=[QUEUE], worker_id=worker)
    api.fail(first, error={"message": "connection refused by 10.0.0.7", "error_type": "SmtpError"})
    again = api.claim_one(queues=[QUEUE], worker_id=worker, wait_seconds=20)
    return {JOB: again["id"], TOKEN: again["lease_token"], WORKER: worker}


def dead(api: Api) -> Names:
    names = running(api)
    error = {"message": "mailbox 4711 does not exist", "error_type": "SmtpError"}
    api.post(f"/jobs/{names[JOB]}/fail", {"lease_token": names[TOKEN], "error": error, "retryable": False})
    return names


def worker_known(api: Api) -> Names:
    names = running(api)
    assert names[WORKER] in [worker["worker_id"] for worker in api.get("/workers")["items"]]
    return names


def some_of_each(api: Api) -> Names:
    """Times are written once a second: the example has them, so they are waited for."""
    names = completed(api)
    waiting(api)
    wait_until(lambda: {"wait_time", "run_time"} <= api.get(f"/queues/{QUEUE}/stats").keys())
    return names


def two_queues(api: Api) -> Names:
    api.enqueue()
    return waiting(api)


def configured(api: Api) -> Names:
    api.configure(**example("put_queue")["request"]["body"])
    return {CONFIGURED: api.queue}


def configured_with_a_job(api: Api) -> Names:
    names = configured(api)
    api.enqueue()
    return names


def no_schedule(api: Api) -> Names:
    api.http.delete(NIGHTLY)
    return {}


def scheduled_nightly(api: Api) -> Names:
    no_schedule(api)
    api.put(NIGHTLY, SCHEDULE)
    return {}


def nightly_has_run(api: Api) -> Names:
    scheduled_nightly(api)
    return {JOB: api.post(f"{NIGHTLY}/run", status=201)["id"]}


def nightly_is_paused(api: Api) -> Names:
    names = nightly_has_run(api)
    api.post(f"{NIGHTLY}/pause")
    return names


def nightly_runs_under_a_key(api: Api) -> Names:
    no_schedule(api)
    job = {**SCHEDULE["job"], "unique": {"key": "nightly-report"}}
    api.put(NIGHTLY, {**SCHEDULE, "job": job})
    return {JOB: api.post(f"{NIGHTLY}/run", status=201)["id"]}


def asked_for_and_scheduled(api: Api) -> Names:
    api.claim(queues=[QUEUE])
    return scheduled(api)


def with_a_key(api: Api) -> Names:
    return {JOB: api.enqueue(**SEND, unique={"key": "welcome-ada"})["id"]}


def typed(api: Api) -> Names:
    """Types stay when a test is over: one that no other test uses."""
    api.put("/job-types/invoice.send", example("put_job_type")["request"]["body"])
    return {}


def key_made(api: Api) -> Names:
    """With a name of its own: a name has two live keys at most."""
    body = example("create_api_key")["request"]["body"]
    return {API_KEY: api.post("/api-keys", {**body, "name": f"mail-workers-{next(_numbers)}"}, status=201)["id"]}


ARRANGED: dict[str, Arrangement] = {
    "enqueue_job": nothing,
    "enqueue_job.200": with_a_key,
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
    "explain_job": asked_for_and_scheduled,
    "claim_jobs": running_with_another_waiting,
    "heartbeat_leases": running,
    "heartbeat_job": running,
    "complete_job": running,
    "fail_job": running,
    "snooze_job": running,
    "release_job": running,
    "settle_jobs": running,
    "list_workers": worker_known,
    "drain_worker": worker_known,
    "stop_worker": worker_known,
    "resume_worker": worker_known,
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
    "run_schedule.200": nightly_runs_under_a_key,
    "pause_schedule": nightly_has_run,
    "resume_schedule": nightly_is_paused,
    "preview_schedule": nothing,
    "list_job_types": typed,
    "get_job_type": typed,
    "put_job_type": typed,
    "delete_job_type": typed,
    "create_api_key": nothing,
    "list_api_keys": key_made,
    "get_api_key": key_made,
    "revoke_api_key": key_made,
    "get_stats": some_of_each,
    "get_queue_stats": some_of_each,
    "get_liveness": nothing,
    "get_readiness": nothing,
    "get_limits": nothing,
    "get_metrics": nothing,
}


def example(name: str) -> Json:
    found: Json = json.loads((EXAMPLES / f"{name}.json").read_text())
    return found


def with_real_names(value: Any, names: Names) -> Any:
    text = json.dumps(value)
    for name, real in names.items():
        text = text.replace(name, real)
    return json.loads(text)
