"""Calls that come at the same time share a statement: how many there are, and that each caller gets his own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database
from tests.polls import Background

Eventually = Callable[[Callable[[], Any]], Any]

WATCH = """
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
    RAISE EXCEPTION 'a row that the database does not take';
END
$$;
CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.job_type = 'bad') EXECUTE FUNCTION refuse();
"""
REFUSE_CLAIMS = """
CREATE OR REPLACE FUNCTION refuse_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'in other hands' USING ERRCODE = 'lock_not_available';
END
$$;
CREATE TRIGGER refuse_claim BEFORE UPDATE ON jobs FOR EACH ROW WHEN (NEW.state = 'running') EXECUTE FUNCTION refuse_claim();
"""
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
CALLERS = 12


@pytest.fixture(scope="module")
def watched(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "sharing"), loop)
    database.execute(WATCH)
    yield database
    database.close()


@pytest.fixture(scope="module")
def sharing(watched: TestDatabase) -> Iterator[Api]:
    """Without chores that move jobs in mid-test."""
    with threaded_broker(QUICK.model_copy(update={"poll_seconds": 3600.0, "notify": False}), watched.dsn) as broker:
        yield Api(broker.http, "shared")


@pytest.fixture
def api(sharing: Api, watched: TestDatabase) -> Api:
    watched.empty()
    sharing.enqueue()
    watched.empty()
    watched.execute("DELETE FROM statements")
    return sharing


def statements(db: TestDatabase, kind: str) -> int:
    return int(db.value("SELECT count(*) FROM statements WHERE kind = $1", kind))


@contextmanager
def crowd(db: TestDatabase, eventually: Eventually) -> Iterator[Callable[[], None]]:
    """Holds up the first statement. The block calls what it gets when the first is on its way, sends the others, and then they may go."""
    db.execute("INSERT INTO held DEFAULT VALUES")
    try:
        yield lambda: eventually(lambda: db.value(SLEEPING) == 1)
    finally:
        db.execute("DELETE FROM held")


def came_in(api: Api) -> None:
    """What was sent before has most likely been read when the broker has answered this some times; if not, it shares a later statement."""
    for _ in range(20):
        assert api.http.get("/livez").status_code == 200


def test_single_enqueues_share_a_statement(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    with crowd(watched, eventually) as first_is_under_way:
        calls = [background.submit(api.enqueue, payload=0)]
        first_is_under_way()
        calls += [background.submit(api.enqueue, payload=number) for number in range(1, CALLERS)]
        came_in(api)
    jobs = [call.result(20) for call in calls]
    assert [job["payload"] for job in jobs] == list(range(CALLERS))
    assert {job["id"] for job in jobs} == {item["id"] for item in api.get("/jobs", queue=api.queue)["items"]}
    assert statements(watched, "INSERT") < CALLERS


def test_a_row_that_the_database_refuses_fails_none_that_shared_its_statement(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    def send(job_type: str) -> int:
        return api.http.post("/jobs", json={"queue": api.queue, "job_type": job_type}).status_code

    kinds = ["good", "good", "bad", "good", "bad", "good"]
    with crowd(watched, eventually) as first_is_under_way:
        first = background.submit(send, "good")
        first_is_under_way()
        calls = [background.submit(send, kind) for kind in kinds]
        came_in(api)
    assert [call.result(20) for call in [first, *calls]] == [201] + [201 if kind == "good" else 500 for kind in kinds]
    assert api.counts() == {"ready": 5}


def test_claims_of_one_job_share_a_statement_and_no_job(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    ids = api.enqueue_many(CALLERS - 2)
    with crowd(watched, eventually) as first_is_under_way:
        calls = [background.submit(api.claim, worker_id="worker-0", lease_seconds=10)]
        first_is_under_way()
        calls += [
            background.submit(api.claim, worker_id=f"worker-{n}", lease_seconds=10 + n) for n in range(1, CALLERS)
        ]
        came_in(api)
    got = {n: jobs[0] for n, jobs in enumerate(call.result(20)["jobs"] for call in calls) if jobs}
    assert sorted(job["id"] for job in got.values()) == sorted(ids)
    assert {n: job["lease_seconds"] for n, job in got.items()} == {n: 10 + n for n in got}
    assert {n: api.job(job["id"])["worker_id"] for n, job in got.items()} == {n: f"worker-{n}" for n in got}
    assert statements(watched, "UPDATE") < CALLERS
    assert api.counts() == {"running": CALLERS - 2}


def test_claims_of_many_share_a_statement_each_with_its_own_measure(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    """How many, for whom and for how long; and what comes first goes to who comes first."""
    ids = api.enqueue_many(1 + sum(range(1, CALLERS)))
    with crowd(watched, eventually) as first_is_under_way:
        calls = [background.submit(api.claim, worker_id="worker-0", lease_seconds=10)]
        first_is_under_way()
        calls += [
            background.submit(api.claim, worker_id=f"worker-{n}", lease_seconds=10 + n, max_jobs=n)
            for n in range(1, CALLERS)
        ]
        came_in(api)
    got = [call.result(20)["jobs"] for call in calls]
    assert [len(jobs) for jobs in got] == [1, *range(1, CALLERS)]
    assert sorted(job["id"] for jobs in got for job in jobs) == ids
    assert all([job["id"] for job in jobs] == sorted(job["id"] for job in jobs) for jobs in got)
    assert [{job["lease_seconds"] for job in jobs} for jobs in got] == [{10}, *({10 + n} for n in range(1, CALLERS))]
    stored = [
        {(api.job(job["id"])["worker_id"], api.job(job["id"])["lease_expires_at"]) for job in jobs} for jobs in got
    ]
    assert stored == [{(f"worker-{n}", job["lease_expires_at"]) for job in jobs} for n, jobs in enumerate(got)]
    assert statements(watched, "UPDATE") < CALLERS
    assert api.counts() == {"running": len(ids)}


def test_settlements_of_many_share_a_statement_and_of_calls_about_one_job_the_right_token_is_heard(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(7)
    jobs = api.claim(max_jobs=7)["jobs"]
    done = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
    stale = [{**item, "lease_token": "of another time"} for item in done]
    with crowd(watched, eventually) as first_is_under_way:
        first = background.submit(api.settle, done[0])
        first_is_under_way()
        wrong = background.submit(api.settle, *stale[1:4])
        came_in(api)
        right = [background.submit(api.settle, *done[1:4]), background.submit(api.settle, *done[4:], done[4])]
        came_in(api)
    assert [result["status"] for result in first.result(20)["results"]] == ["settled"]
    assert (wrong.result(20)["lost"], {result["status"] for result in wrong.result()["results"]}) == (3, {"lease_lost"})
    assert [result["status"] for result in right[0].result(20)["results"]] == ["settled"] * 3
    assert [result["status"] for result in right[1].result(20)["results"]] == ["settled"] * 3 + ["already_settled"]
    assert [result["job_id"] for result in right[1].result()["results"]] == [
        item["job_id"] for item in (*done[4:], done[4])
    ]
    assert statements(watched, "DELETE") < 6
    assert api.counts() == {"completed": 7}


def test_who_fails_a_job_that_another_call_completes_hears_that_it_is_lost(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(3)
    jobs = api.claim(max_jobs=3)["jobs"]
    done = [{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs]
    with crowd(watched, eventually) as first_is_under_way:
        first = background.submit(api.settle, done[0])
        first_is_under_way()
        both = background.submit(api.settle, done[1], {**done[2], "outcome": "fail", "error": {"message": "no"}})
        other = background.submit(api.settle, done[2])
        came_in(api)
    assert [call.result(20)["results"][0]["status"] for call in (first, both, other)] == ["settled"] * 3
    assert both.result()["results"][1]["status"] == "lease_lost"
    assert [api.job(job["id"])["state"] for job in jobs] == ["completed"] * 3


def test_completions_share_a_statement_and_each_hears_of_its_own(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(CALLERS)
    jobs = api.claim(max_jobs=CALLERS)["jobs"]
    stale = {**jobs[1], "lease_token": jobs[2]["lease_token"]}

    def send(job: Json) -> tuple[int, str]:
        answer = api.http.post(
            f"/jobs/{job['id']}/complete", json={"lease_token": job["lease_token"], "result": job["id"]}
        )
        return answer.status_code, answer.json().get("status")

    with crowd(watched, eventually) as first_is_under_way:
        first = background.submit(send, jobs[0])
        first_is_under_way()
        calls = [background.submit(send, job) for job in jobs[1:]]
        again = [background.submit(send, jobs[0]), background.submit(send, jobs[3])]
        lost = background.submit(send, stale)
        came_in(api)
    assert first.result(20) == (200, "settled")
    results = [call.result(20) for call in calls]
    assert results.count((200, "settled")) + [call.result(20) for call in again].count((200, "settled")) == CALLERS - 1
    assert again[0].result() == (200, "already_settled")
    assert lost.result(20)[0] == 409
    assert statements(watched, "DELETE") < CALLERS
    assert api.counts() == {"completed": CALLERS}
    assert all(api.job(job["id"])["result"] == job["id"] for job in jobs)


def test_a_row_in_other_hands_fails_none_that_shared_its_statement(
    api: Api, watched: TestDatabase, background: Background, eventually: Eventually
) -> None:
    api.enqueue_many(4)
    first, locked, *others = api.claim(max_jobs=4)["jobs"]

    def send(job: Json) -> Json:
        answer: Json = api.http.post(f"/jobs/{job['id']}/complete", json={"lease_token": job["lease_token"]}).json()
        return answer

    with watched.uncommitted("SELECT FROM jobs WHERE id = $1 FOR UPDATE", UUID(locked["id"])):
        with crowd(watched, eventually) as first_is_under_way:
            calls = [background.submit(send, first)]
            first_is_under_way()
            calls += [background.submit(send, job) for job in (locked, *others)]
            came_in(api)
        told = [call.result(20) for call in calls]
    assert [answer.get("status") for answer in (told[0], *told[2:])] == ["settled"] * 3
    assert (told[1]["code"], told[1]["outcome"]) == ("database_unavailable", "not_done")
    assert send(locked)["status"] == "settled"


def test_what_a_caller_has_settled_before_a_shared_claim_fails_is_not_told_as_undone(
    api: Api, watched: TestDatabase, background: Background
) -> None:
    api.enqueue()
    held = api.claim_one()
    done = {"job_id": held["id"], "lease_token": held["lease_token"], "outcome": "complete"}
    watched.execute(REFUSE_CLAIMS)
    try:
        api.enqueue()
        told = api.http.post("/claim", json={"queues": [api.queue], "settle": [done]}).json()
    finally:
        watched.execute("DROP TRIGGER refuse_claim ON jobs")
    assert (told["code"], told["outcome"]) == ("database_unavailable", "unknown")
    assert api.job(held["id"])["state"] == "completed"
