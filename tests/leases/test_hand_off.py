"""Hand-off: a job that comes in while polls wait is stored as leased to one of them. What that must not cost anybody."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.matching import pollers
from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK
from tests.database import Loop, TestDatabase, create_database
from tests.db.proxy import Proxy, proxy_to
from tests.db.test_outcomes import outcome
from tests.leases.conftest import ClaimStatements
from tests.polls import Background, RawClaim, counted, heard_of, jobs_of

Eventually = Callable[[Callable[[], Any]], Any]

HOLD = """
CREATE TABLE inserts_held (since timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION hold_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM inserts_held) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER hold_insert AFTER INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION hold_insert();
"""
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


def asleep(broker: RunningBroker) -> int:
    """Polls that have looked and found nothing; `parked` counts those that are just looking too."""
    assert broker.broker_services is not None
    return sum(poll.is_asleep for poll in broker.broker_services.waiting.polls())


def matched(api: Api) -> int:
    return counted(api.http, "jobs_handed_over_total")


@pytest.fixture(scope="module")
def holding(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database whose inserts can be held up."""
    database = TestDatabase(create_database(postgres, loop, "handing"), loop)
    database.execute(HOLD)
    yield database
    database.close()


@pytest.fixture
def proxy(holding: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(holding.dsn) as proxy:
        yield proxy


@pytest.fixture
def held_broker(proxy: Proxy) -> Iterator[RunningBroker]:
    with threaded_broker(QUICK.model_copy(update={"poll_seconds": 3600.0, "notify": False}), proxy.dsn) as broker:
        yield broker


@pytest.fixture
def slow(held_broker: RunningBroker, holding: TestDatabase, queue: str) -> Api:
    api = Api(held_broker.http, queue)
    holding.empty()
    api.enqueue()
    holding.empty()
    return api


@contextmanager
def inserts_held(db: TestDatabase) -> Iterator[None]:
    db.execute("INSERT INTO inserts_held DEFAULT VALUES")
    try:
        yield
    finally:
        db.execute("DELETE FROM inserts_held")


def test_a_waiting_poll_gets_the_job_with_the_statement_that_stores_it(
    quiet: Api,
    quiet_broker: RunningBroker,
    background: Background,
    claim_statements: ClaimStatements,
    eventually: Eventually,
) -> None:
    before = matched(quiet)
    poll = background.claim(quiet, worker_id="first", lease_seconds=30)
    eventually(lambda: asleep(quiet_broker) == claim_statements.count() == 1)
    job = quiet.enqueue(payload={"n": 1}, tags=["a"], metadata={"b": 2}, priority=3)
    (got,) = poll.result(20)["jobs"]
    assert (claim_statements.count(), matched(quiet)) == (1, before + 1)
    assert (got["id"], got["attempt"], got["deliveries"], got["lease_seconds"]) == (job["id"], 1, 1, 30)
    assert (got["payload"], got["tags"], got["metadata"]) == ({"n": 1}, ["a"], {"b": 2})
    running = quiet.job(job["id"])
    assert (running["state"], running["worker_id"], running["lease_expires_at"]) == (
        "running",
        "first",
        got["lease_expires_at"],
    )
    assert quiet.counts() == {"running": 1}
    assert quiet.complete(got)["status"] == "settled"
    assert quiet.counts() == {"completed": 1}


def test_what_is_handed_over_is_told_as_a_claim_tells_it(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    fields: Json = {
        "payload": [1],
        "timeout_seconds": 20,
        "lease_seconds": 40,
        "tags": ["x"],
        "metadata": {"y": None},
        "max_attempts": 2,
    }
    poll = background.claim(quiet)
    eventually(lambda: asleep(quiet_broker) == 1)
    quiet.enqueue(**fields)
    (first,) = poll.result(20)["jobs"]
    quiet.enqueue(**fields)
    second = quiet.claim_one()
    updater = {"id", "lease_token", "lease_expires_at", "created_at", "deadline_at"}
    assert {name: value for name, value in first.items() if name not in updater} == {
        name: value for name, value in second.items() if name not in updater
    }
    assert first.keys() == second.keys()
    assert first["deadline_at"] == first["lease_expires_at"]


def test_a_batch_goes_to_as_many_polls_as_wait(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    polls = background.claims(3, quiet)
    eventually(lambda: asleep(quiet_broker) == 3)
    ids = quiet.enqueue_many(5)
    eventually(lambda: len(jobs_of(polls)) == 3)
    assert {job["id"] for job in jobs_of(polls)} < set(ids)
    assert quiet.counts() == {"running": 3, "ready": 2}


def test_a_poll_gets_as_many_as_it_asked_for_and_the_most_urgent_first(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    poll = background.claim(quiet, max_jobs=2)
    eventually(lambda: asleep(quiet_broker) == 1)
    quiet.batch({"priority": 0}, {"priority": 9}, {"priority": 5})
    stored = {item["priority"]: item["id"] for item in quiet.get("/jobs", queue=quiet.queue)["items"]}
    assert [job["id"] for job in poll.result(20)["jobs"]] == [stored[9], stored[5]]
    assert quiet.counts() == {"running": 2, "ready": 1}


def test_each_job_goes_to_a_poll_that_takes_its_type(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    polls = {kind: background.claim(quiet, job_types=[kind]) for kind in ("a", "b")}
    eventually(lambda: asleep(quiet_broker) == 2)
    quiet.batch({"job_type": "c"}, {"job_type": "b"}, {"job_type": "a"})
    assert {kind: poll.result(20)["jobs"][0]["job_type"] for kind, poll in polls.items()} == {"a": "a", "b": "b"}
    assert quiet.counts() == {"running": 2, "ready": 1}


@pytest.mark.parametrize(
    ("config", "claim", "job"),
    [
        ({}, {"key": "k"}, {}),
        ({"max_running": 5}, {}, {}),
        ({"rate": {"limit": 5, "per_seconds": 1}}, {}, {}),
        ({"max_running_per_group": 1}, {}, {"group": "g"}),
        ({"fair": True}, {}, {}),
        ({}, {}, {"group": "g"}),
        ({}, {}, {"expires_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()}),
        ({}, {}, {"unique": {"key": "u"}}),
    ],
    ids=[
        "a poll with a key",
        "a limit",
        "a rate",
        "strict groups",
        "a fair queue",
        "a group",
        "an expiry",
        "a unique key",
    ],
)
def test_where_more_decides_than_who_came_first_the_poll_claims(
    quiet: Api,
    quiet_broker: RunningBroker,
    background: Background,
    eventually: Eventually,
    config: Json,
    claim: Json,
    job: Json,
) -> None:
    before = matched(quiet)
    quiet.configure(**config)
    poll = background.claim(quiet, **claim)
    eventually(lambda: asleep(quiet_broker) == 1)
    stored = quiet.enqueue(**job)
    assert poll.result(20)["jobs"][0]["id"] == stored["id"]
    assert matched(quiet) == before


def test_a_paused_queue_hands_nothing_over(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    quiet.pause()
    poll = background.claim(quiet)
    eventually(lambda: asleep(quiet_broker) == 1)
    quiet.enqueue()
    assert quiet.counts() == {"ready": 1}
    quiet.resume()
    assert len(poll.result(20)["jobs"]) == 1


def test_a_client_that_leaves_while_the_job_is_stored_costs_it_nothing(
    slow: Api, held_broker: RunningBroker, holding: TestDatabase, background: Background, eventually: Eventually
) -> None:
    poll = RawClaim(held_broker.base, {"queues": [slow.queue], "wait_seconds": 25})
    eventually(lambda: asleep(held_broker) == 1)
    with inserts_held(holding):
        stored = background.submit(slow.enqueue)
        eventually(lambda: holding.value(SLEEPING) == 1)
        poll.cut()
        heard_of(slow.http)
    job = stored.result(20)
    eventually(lambda: slow.job(job["id"])["state"] == "ready")
    after = slow.job(job["id"])
    assert (after["attempt"], after["crashes"], after["deliveries"]) == (0, 0, 1)
    assert slow.claim_one()["attempt"] == 1


def test_a_wait_that_is_over_while_the_job_is_stored_still_brings_it(
    slow: Api,
    held_broker: RunningBroker,
    holding: TestDatabase,
    background: Background,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pollers, "PATIENCE", 60.0)
    poll = background.claim(slow, wait_seconds=3)
    eventually(lambda: asleep(held_broker) == 1)
    with inserts_held(holding):
        stored = background.submit(slow.enqueue)
        eventually(lambda: holding.value(SLEEPING) == 1)
        eventually(lambda: asleep(held_broker) == 0)
        assert not poll.done()
    assert poll.result(20)["jobs"][0]["id"] == stored.result(20)["id"]


def test_a_poll_does_not_wait_for_ever_for_what_it_was_promised(
    slow: Api,
    held_broker: RunningBroker,
    holding: TestDatabase,
    background: Background,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the job, stored at last as leased to it, goes back at no cost."""
    monkeypatch.setattr(pollers, "PATIENCE", 0.01)
    poll = background.claim(slow, wait_seconds=3)
    eventually(lambda: asleep(held_broker) == 1)
    with inserts_held(holding):
        stored = background.submit(slow.enqueue)
        assert poll.result(20)["jobs"] == []
    job = stored.result(20)
    eventually(lambda: slow.job(job["id"])["state"] == "ready")
    assert slow.claim_one()["attempt"] == 1
    assert slow.job(job["id"])["crashes"] == 0


def test_a_job_that_may_be_stored_does_not_wait_for_a_lease_that_nobody_has(
    slow: Api,
    held_broker: RunningBroker,
    proxy: Proxy,
    holding: TestDatabase,
    background: Background,
    eventually: Eventually,
) -> None:
    """The connection is cut in mid-statement: nobody knows, and Postgres commits."""
    poll = background.claim(slow)
    eventually(lambda: asleep(held_broker) == 1)
    with inserts_held(holding):
        stored = background.submit(slow.http.post, "/jobs", json={"queue": slow.queue, "job_type": "test"})
        eventually(lambda: holding.value(SLEEPING) == 1)
        proxy.cut()
        assert outcome(stored.result(20)) == "unknown"
    (got,) = poll.result(20)["jobs"]
    assert (got["attempt"], got["deliveries"], slow.job(got["id"])["crashes"]) == (1, 2, 0)
