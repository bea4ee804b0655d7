"""Runs jobs through all lifecycles, so that every statement of one lane runs at least once."""

from tests.api_client import Api, Json
from tests.conftest import wait_until
from tests.database import TestDatabase


def run_all_lifecycles(api: Api, database: TestDatabase) -> None:
    update_and_cancel_jobs(api, database)
    finish_jobs(api)
    replay_and_purge_dead_letters(api)
    stop_reporting_a_lease(api, database)
    let_a_lease_expire(api, database)
    limit_groups(Api(api.http, "limited-groups"))
    schedule_groups_fairly(Api(api.http, "fair"))
    limit_queue(Api(api.http, "limited"))
    cool_down_group(Api(api.http, "cooling-down"), database)
    use_unique_keys_and_schedules(Api(api.http, "keyed"), database)
    resolve_dependencies(Api(api.http, "children"))
    miss_start_deadline(Api(api.http, "late"))
    leave_empty_span(Api(api.http, "unclaimed"), database)


def update_and_cancel_jobs(api: Api, database: TestDatabase) -> None:
    later = api.post("/jobs", {"queue": api.queue, "job_type": "test", "delay_seconds": 60}, status=201, key="key-1")
    assert (
        api.post("/jobs", {"queue": api.queue, "job_type": "test", "delay_seconds": 60}, status=201, key="key-1")
        == later
    )
    api.patch(f"/jobs/{later['id']}", {"priority": 1})
    api.post(f"/jobs/{later['id']}/run-now", {})
    assert api.post(f"/jobs/{later['id']}/cancel", {})["state"] == "cancelled"
    soon = api.enqueue(delay_seconds=60)
    database.age(soon["id"], 60)
    wait_until(lambda: api.job(soon["id"])["state"] == "ready")  # the job scheduler makes it ready
    api.release(api.claim_one())
    api.complete(api.claim_one())

    api.enqueue()
    assert api.post(f"/queues/{api.queue}/purge", {"dry_run": True}) == {"matched": 1, "purged": 0, "dry_run": True}
    assert api.post(f"/queues/{api.queue}/purge", {"dry_run": False}) == {"matched": 1, "purged": 1}


def finish_jobs(api: Api) -> None:
    api.enqueue()
    job = api.claim(worker_id="w", key="key-2")["jobs"][0]
    assert api.claim(worker_id="w", key="key-2")["jobs"][0]["lease_token"] == job["lease_token"]
    api.post("/workers/w/drain")
    assert api.claim(worker_id="w", key="key-2")["jobs"][0]["lease_token"] == job["lease_token"]
    api.post("/workers/w/resume")
    api.heartbeat("w", job)
    api.heartbeat_one(job, lease_seconds=5)
    assert api.complete(job)["state"] == "completed"
    assert api.complete(job)["status"] == "already_settled"
    stopped = api.enqueue()
    held = api.claim_one()
    api.post(f"/jobs/{stopped['id']}/cancel", {}, status=202)
    assert api.release(held)["state"] == "cancelled"


def replay_and_purge_dead_letters(api: Api) -> None:
    replayed, moved, purged = api.dead_letter(), api.dead_letter(), api.dead_letter()
    assert api.job(replayed["id"])["state"] == "dead"
    api.post("/dead-letters/replay", {"ids": [replayed["id"]], "overrides": {"payload_merge": {"n": 1}}})
    api.post("/dead-letters/replay", {"ids": [moved["id"]], "overrides": {"queue": "elsewhere"}})
    api.post("/dead-letters/purge", {"ids": [purged["id"]], "dry_run": False})


def stop_reporting_a_lease(api: Api, database: TestDatabase) -> None:
    """A worker's heartbeat no longer lists a lease of 10 seconds ago."""
    job = api.claim_one(worker_id="forgetful", lease_seconds=60)
    database.age(job["id"], 10)
    api.heartbeat("forgetful", holds_all=True)


def let_a_lease_expire(api: Api, database: TestDatabase) -> None:
    api.enqueue()
    job = api.claim_one(worker_id="crashed", lease_seconds=60)
    database.age(job["id"], 61)
    api.complete(api.claim_one(wait_seconds=20))


def limit_groups(api: Api) -> None:
    """Jobs run and wait before the limit is set, so that it must be applied to them."""
    jobs = [api.enqueue(group="g") for _ in range(3)]
    held = api.claim_one()
    api.configure(max_running_per_group=1)
    wait_until(lambda: explain_codes(api, jobs[1]) >= {"group_at_limit"})
    api.complete(held)
    api.complete(api.claim_one(wait_seconds=20))
    api.configure()
    api.complete(api.claim_one(wait_seconds=20))


def schedule_groups_fairly(api: Api) -> None:
    api.configure(fair=True)
    first, second = api.enqueue(group="a"), api.enqueue(group="b")
    wait_until(lambda: "jobs_ahead" in explain_codes(api, second))
    api.release(api.claim_one(queues=[api.queue]))
    assert api.job(first["id"])["state"] == "ready"


def limit_queue(api: Api) -> None:
    api.configure(max_running=1, rate={"limit": 1, "per_seconds": 3600}, max_waiting=10)
    api.enqueue()
    later = api.enqueue()
    api.release(api.claim_one(queues=[api.queue, "elsewhere"]))
    assert "rate_limited" in explain_codes(api, later)
    api.post(f"/queues/{api.queue}/purge", {"dry_run": False})


def cool_down_group(api: Api, database: TestDatabase) -> None:
    waiting = [api.enqueue(group="g") for _ in range(2)]
    api.fail(api.claim_one(), scope="group", retry_after_seconds=60)
    wait_until(lambda: "group_at_rest" in explain_codes(api, waiting[1]))
    database.execute("UPDATE group_cooldowns SET until = now() - interval '1 second'")
    database.execute("UPDATE config_versions SET number = number + 1")
    api.complete(api.claim_one(wait_seconds=20))
    wait_until(lambda: not database.rows("SELECT FROM group_cooldowns"))


def use_unique_keys_and_schedules(api: Api, database: TestDatabase) -> None:
    job = api.enqueue(unique={"key": "k"})
    database.execute("UPDATE deduplication_keys SET expires_at = now() - interval '1 hour'")
    body = {"queue": api.queue, "job_type": "test", "payload": 1, "unique": {"key": "k", "on_duplicate": "replace"}}
    assert api.post("/jobs", body)["id"] == job["id"]
    api.put(
        "/schedules/lives", {"every_seconds": 3600, "job": {"job_type": "test", "queue": api.queue}, "overlap": "skip"}
    )
    for _ in range(2):
        api.post("/schedules/lives/run", status=201)
        database.execute("UPDATE schedules SET next_run_at = now()")
        wait_until(lambda: not database.rows("SELECT FROM schedules WHERE next_run_at <= now()"))


def resolve_dependencies(api: Api) -> None:
    done = api.enqueue()
    api.complete(api.claim_one(), result=1)
    parent = api.enqueue(depends_on=[done["id"]])
    child = api.enqueue(depends_on=[parent["id"]], delay_seconds=3600)
    api.complete(api.claim_one(wait_seconds=20, parent_results=True))
    wait_until(lambda: api.job(child["id"])["state"] == "scheduled")
    grandchild = api.enqueue(depends_on=[child["id"]])
    api.cancel(child)
    wait_until(lambda: api.job(grandchild["id"])["state"] == "cancelled")


def miss_start_deadline(api: Api) -> None:
    job = api.enqueue(expires_at="2020-01-01T00:00:00Z")
    wait_until(lambda: api.job(job["id"])["state"] == "dead")


def leave_empty_span(api: Api, database: TestDatabase) -> None:
    """A span of a cancelled job in a queue that no worker claims from."""
    job = api.cancel(api.enqueue())
    wait_until(lambda: not database.rows("SELECT FROM ready_spans WHERE first_id = $1", job["id"]))


def explain_codes(api: Api, job: Json) -> set[str]:
    return {reason["code"] for reason in api.get(f"/jobs/{job['id']}/explain")["reasons"]}
