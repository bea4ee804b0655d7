"""Natural batching: concurrent calls share a statement, and each gets its results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]

STATEMENT_TRIGGER = """
CREATE TABLE statements (kind text);
CREATE TABLE held (since timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO statements VALUES (TG_OP);
    WHILE EXISTS (SELECT FROM held) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION watch();
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this row is rejected';
END
$$;
CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.job_type = 'bad') EXECUTE FUNCTION refuse();
"""
REJECT_CLAIMS = """
CREATE OR REPLACE FUNCTION reject_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'locked by another session' USING ERRCODE = 'lock_not_available';
END
$$;
CREATE TRIGGER reject_claim BEFORE UPDATE ON jobs FOR EACH ROW
WHEN (NEW.state = 'running') EXECUTE FUNCTION reject_claim();
"""
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
CALLERS = 12


@pytest.fixture(scope="module")
def watched_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "sharing"), loop)
    database.execute(STATEMENT_TRIGGER)
    yield database
    database.close()


@pytest.fixture(scope="module")
def batching_api(watched_database: TestDatabase) -> Iterator[Api]:
    """A broker without background services that would move jobs during a test."""
    with threaded_broker(
        TEST_SETTINGS.model_copy(update={"poll_seconds": 3600.0, "notify": False}), watched_database.dsn
    ) as broker:
        yield Api(broker.http, "shared")


@pytest.fixture
def api(batching_api: Api, watched_database: TestDatabase) -> Api:
    watched_database.empty()
    batching_api.enqueue()
    watched_database.empty()
    watched_database.execute("DELETE FROM statements")
    return batching_api


def statements(db: TestDatabase, kind: str) -> int:
    return int(db.value("SELECT count(*) FROM statements WHERE kind = $1", kind))


@contextmanager
def first_statement_blocked(db: TestDatabase, eventually: Eventually) -> Iterator[Callable[[], None]]:
    """Blocks the first statement until the end of the block.

    The block sends the first call, calls the function that it gets to wait until the statement
    runs, and sends the other calls.
    """
    db.execute("INSERT INTO held DEFAULT VALUES")
    try:
        yield lambda: eventually(lambda: db.value(SLEEPING) == 1)
    finally:
        db.execute("DELETE FROM held")


def wait_until_received(api: Api) -> None:
    """Waits until the broker has most likely read the requests that were sent before.

    If it has not, they share a later statement.
    """
    for _ in range(20):
        assert api.http.get("/livez").status_code == 200


def test_concurrent_enqueues_share_a_statement(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        calls = [background.submit(api.enqueue, payload=0)]
        wait_until_blocked()
        calls += [background.submit(api.enqueue, payload=number) for number in range(1, CALLERS)]
        wait_until_received(api)
    jobs = [call.result(20) for call in calls]
    assert [job["payload"] for job in jobs] == list(range(CALLERS))
    assert {job["id"] for job in jobs} == {item["id"] for item in api.get("/jobs", queue=api.queue)["items"]}
    assert statements(watched_database, "INSERT") < CALLERS


def test_row_rejected_by_postgres_fails_no_other_call_of_its_statement(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    def send(job_type: str) -> int:
        return api.http.post("/jobs", json={"queue": api.queue, "job_type": job_type}).status_code

    kinds = ["good", "good", "bad", "good", "bad", "good"]
    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        first = background.submit(send, "good")
        wait_until_blocked()
        calls = [background.submit(send, kind) for kind in kinds]
        wait_until_received(api)
    assert [call.result(20) for call in [first, *calls]] == [201] + [201 if kind == "good" else 500 for kind in kinds]
    assert api.counts() == {"ready": 5}


def test_concurrent_claims_of_one_job_share_a_statement_but_no_job(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    ids = api.enqueue_many(CALLERS - 2)
    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        calls = [background.submit(api.claim, worker_id="worker-0", lease_seconds=10)]
        wait_until_blocked()
        calls += [
            background.submit(api.claim, worker_id=f"worker-{n}", lease_seconds=10 + n) for n in range(1, CALLERS)
        ]
        wait_until_received(api)
    claimed = {n: jobs[0] for n, jobs in enumerate(call.result(20)["jobs"] for call in calls) if jobs}
    assert sorted(job["id"] for job in claimed.values()) == sorted(ids)
    assert {n: job["lease_seconds"] for n, job in claimed.items()} == {n: 10 + n for n in claimed}
    assert {n: api.job(job["id"])["worker_id"] for n, job in claimed.items()} == {n: f"worker-{n}" for n in claimed}
    assert statements(watched_database, "UPDATE") < CALLERS
    assert api.counts() == {"running": CALLERS - 2}


def test_claims_that_share_a_statement_keep_their_limit_worker_and_lease_length(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    """And the first poller gets the first jobs."""
    ids = api.enqueue_many(1 + sum(range(1, CALLERS)))
    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        calls = [background.submit(api.claim, worker_id="worker-0", lease_seconds=10)]
        wait_until_blocked()
        calls += [
            background.submit(api.claim, worker_id=f"worker-{n}", lease_seconds=10 + n, max_jobs=n)
            for n in range(1, CALLERS)
        ]
        wait_until_received(api)
    claimed = [call.result(20)["jobs"] for call in calls]
    assert [len(jobs) for jobs in claimed] == [1, *range(1, CALLERS)]
    assert sorted(job["id"] for jobs in claimed for job in jobs) == ids
    assert all([job["id"] for job in jobs] == sorted(job["id"] for job in jobs) for jobs in claimed)
    assert [{job["lease_seconds"] for job in jobs} for jobs in claimed] == [
        {10},
        *({10 + n} for n in range(1, CALLERS)),
    ]
    stored = [
        {(api.job(job["id"])["worker_id"], api.job(job["id"])["lease_expires_at"]) for job in jobs} for jobs in claimed
    ]
    assert stored == [{(f"worker-{n}", job["lease_expires_at"]) for job in jobs} for n, jobs in enumerate(claimed)]
    assert statements(watched_database, "UPDATE") < CALLERS
    assert api.counts() == {"running": len(ids)}


def test_settlements_share_a_statement_and_the_valid_token_of_a_job_wins(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(7)
    jobs = api.claim(max_jobs=7)["jobs"]
    done = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
    stale = [{**item, "lease_token": "stale"} for item in done]
    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        first = background.submit(api.settle, done[0])
        wait_until_blocked()
        wrong = background.submit(api.settle, *stale[1:4])
        wait_until_received(api)
        right = [background.submit(api.settle, *done[1:4]), background.submit(api.settle, *done[4:], done[4])]
        wait_until_received(api)
    assert [result["status"] for result in first.result(20)["results"]] == ["settled"]
    assert (wrong.result(20)["lost"], {result["status"] for result in wrong.result()["results"]}) == (3, {"lease_lost"})
    assert [result["status"] for result in right[0].result(20)["results"]] == ["settled"] * 3
    assert [result["status"] for result in right[1].result(20)["results"]] == ["settled"] * 3 + ["already_settled"]
    assert [result["job_id"] for result in right[1].result()["results"]] == [
        item["job_id"] for item in (*done[4:], done[4])
    ]
    assert statements(watched_database, "DELETE") < 6
    assert api.counts() == {"completed": 7}


def test_failure_of_a_job_that_a_concurrent_call_completes_is_a_lost_lease(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(3)
    jobs = api.claim(max_jobs=3)["jobs"]
    done = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        first = background.submit(api.settle, done[0])
        wait_until_blocked()
        both = background.submit(api.settle, done[1], {**done[2], "outcome": "fail", "error": {"message": "no"}})
        other = background.submit(api.settle, done[2])
        wait_until_received(api)
    assert [call.result(20)["results"][0]["status"] for call in (first, both, other)] == ["settled"] * 3
    assert both.result()["results"][1]["status"] == "lease_lost"
    assert [api.job(job["id"])["state"] for job in jobs] == ["completed"] * 3


def test_completions_share_a_statement_and_each_call_gets_its_results(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(CALLERS)
    jobs = api.claim(max_jobs=CALLERS)["jobs"]
    stale = {**jobs[1], "lease_token": jobs[2]["lease_token"]}

    def send(job: Json) -> tuple[int, str]:
        response = api.http.post(
            f"/jobs/{job['id']}/complete", json={"lease_token": job["lease_token"], "result": job["id"]}
        )
        return response.status_code, response.json().get("status")

    with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
        first = background.submit(send, jobs[0])
        wait_until_blocked()
        calls = [background.submit(send, job) for job in jobs[1:]]
        again = [background.submit(send, jobs[0]), background.submit(send, jobs[3])]
        lost = background.submit(send, stale)
        wait_until_received(api)
    assert first.result(20) == (200, "settled")
    results = [call.result(20) for call in calls]
    assert results.count((200, "settled")) + [call.result(20) for call in again].count((200, "settled")) == CALLERS - 1
    assert again[0].result() == (200, "already_settled")
    assert lost.result(20)[0] == 409
    assert statements(watched_database, "DELETE") < CALLERS
    assert api.counts() == {"completed": CALLERS}
    assert all(api.job(job["id"])["result"] == job["id"] for job in jobs)


def test_locked_row_fails_no_other_call_of_its_statement(
    api: Api, watched_database: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(4)
    first, locked, *others = api.claim(max_jobs=4)["jobs"]

    def send(job: Json) -> Json:
        response: Json = api.http.post(f"/jobs/{job['id']}/complete", json={"lease_token": job["lease_token"]}).json()
        return response

    with watched_database.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", UUID(locked["id"])):
        with first_statement_blocked(watched_database, eventually) as wait_until_blocked:
            calls = [background.submit(send, first)]
            wait_until_blocked()
            calls += [background.submit(send, job) for job in (locked, *others)]
            wait_until_received(api)
        responses = [call.result(20) for call in calls]
    assert [response.get("status") for response in (responses[0], *responses[2:])] == ["settled"] * 3
    assert (responses[1]["code"], responses[1]["outcome"]) == ("database_unavailable", "not_done")
    assert send(locked)["status"] == "settled"


@pytest.mark.parametrize("field", [{}, {"wait_seconds": 25, "wait_after_settle": True}], ids=["at once", "waiting"])
def test_failed_claim_after_settlements_has_an_unknown_outcome(
    api: Api, watched_database: TestDatabase, background: Background, field: Json
) -> None:
    api.enqueue()
    held = api.claim_one()
    done = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    watched_database.execute(REJECT_CLAIMS)
    try:
        api.enqueue()
        problem = api.http.post("/claim", json={"queues": [api.queue], "settle": [done], **field}).json()
    finally:
        watched_database.execute("DROP TRIGGER reject_claim ON jobs")
    assert (problem["code"], problem["outcome"]) == ("database_unavailable", "unknown")
    assert api.job(held["id"])["state"] == "completed"
