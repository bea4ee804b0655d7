"""Sync match: a new job is stored as leased to a waiting poller.

What may go wrong in between must cost neither the job nor the poller anything.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.matching import poller
from tests.api.leases.conftest import ClaimStatements
from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase, create_database
from tests.faults.db.proxy import Proxy, proxy_to
from tests.faults.db.test_write_outcome import outcome
from tests.polls import Background, RawClaim, jobs_of_finished_polls, metric_value, wait_until_read

Eventually = Callable[[Callable[[], Any]], Any]

BLOCK_INSERTS = """
CREATE TABLE inserts_blocked (since timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION block_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM inserts_blocked) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER block_insert AFTER INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION block_insert();
"""
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


def sleeping_pollers(broker: RunningBroker) -> int:
    """The number of pollers that sleep. The metric polls_parked counts claiming pollers too."""
    assert broker.broker_services is not None
    return sum(poller.is_asleep for poller in broker.broker_services.pollers.pollers())


def matched(api: Api) -> int:
    return metric_value(api.http, "jobs_handed_over_total")


@pytest.fixture(scope="module")
def blocking_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database whose inserts can be blocked."""
    database = TestDatabase(create_database(postgres, loop, "matching"), loop)
    database.execute(BLOCK_INSERTS)
    yield database
    database.close()


@pytest.fixture
def proxy(blocking_database: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(blocking_database.dsn) as proxy:
        yield proxy


@pytest.fixture
def blocking_broker(proxy: Proxy) -> Iterator[RunningBroker]:
    with threaded_broker(
        TEST_SETTINGS.model_copy(update={"poll_seconds": 3600.0, "notify": False}), proxy.dsn
    ) as broker:
        yield broker


@pytest.fixture
def blocking(blocking_broker: RunningBroker, blocking_database: TestDatabase, queue: str) -> Api:
    api = Api(blocking_broker.http, queue)
    blocking_database.empty()
    api.enqueue()
    blocking_database.empty()
    return api


@contextmanager
def inserts_blocked(db: TestDatabase) -> Iterator[None]:
    db.execute("INSERT INTO inserts_blocked DEFAULT VALUES")
    try:
        yield
    finally:
        db.execute("DELETE FROM inserts_blocked")


def test_waiting_poller_gets_a_job_without_a_claim_statement(
    quiet: Api,
    quiet_broker: RunningBroker,
    background: Background,
    claim_statements: ClaimStatements,
    eventually: Eventually,
) -> None:
    before = matched(quiet)
    poll = background.claim(quiet, worker_id="first", lease_seconds=30)
    eventually(lambda: sleeping_pollers(quiet_broker) == claim_statements.count() == 1)
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


def test_matched_job_has_the_same_fields_as_a_claimed_one(
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
    eventually(lambda: sleeping_pollers(quiet_broker) == 1)
    quiet.enqueue(**fields)
    (first,) = poll.result(20)["jobs"]
    quiet.enqueue(**fields)
    second = quiet.claim_one()
    differing = {"id", "lease_token", "lease_expires_at", "created_at", "deadline_at"}
    assert {name: value for name, value in first.items() if name not in differing} == {
        name: value for name, value in second.items() if name not in differing
    }
    assert first.keys() == second.keys()
    assert first["deadline_at"] == first["lease_expires_at"]


def test_batch_is_matched_with_every_waiting_poller(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    polls = background.claims(3, quiet)
    eventually(lambda: sleeping_pollers(quiet_broker) == 3)
    ids = quiet.enqueue_many(5)
    eventually(lambda: len(jobs_of_finished_polls(polls)) == 3)
    assert {job["id"] for job in jobs_of_finished_polls(polls)} < set(ids)
    assert quiet.counts() == {"running": 3, "ready": 2}


def test_poller_gets_at_most_max_jobs_and_the_highest_priority_first(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    poll = background.claim(quiet, max_jobs=2)
    eventually(lambda: sleeping_pollers(quiet_broker) == 1)
    quiet.batch({"priority": 0}, {"priority": 9}, {"priority": 5})
    stored = {item["priority"]: item["id"] for item in quiet.get("/jobs", queue=quiet.queue)["items"]}
    assert [job["id"] for job in poll.result(20)["jobs"]] == [stored[9], stored[5]]
    assert quiet.counts() == {"running": 2, "ready": 1}


def test_job_is_matched_with_a_poller_of_its_type(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    polls = {kind: background.claim(quiet, job_types=[kind]) for kind in ("a", "b")}
    eventually(lambda: sleeping_pollers(quiet_broker) == 2)
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
def test_poller_claims_instead_if_arrival_alone_does_not_decide(
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
    eventually(lambda: sleeping_pollers(quiet_broker) == 1)
    stored = quiet.enqueue(**job)
    assert poll.result(20)["jobs"][0]["id"] == stored["id"]
    assert matched(quiet) == before


def test_paused_queue_matches_nothing(
    quiet: Api, quiet_broker: RunningBroker, background: Background, eventually: Eventually
) -> None:
    quiet.pause()
    poll = background.claim(quiet)
    eventually(lambda: sleeping_pollers(quiet_broker) == 1)
    quiet.enqueue()
    assert quiet.counts() == {"ready": 1}
    quiet.resume()
    assert len(poll.result(20)["jobs"]) == 1


def test_job_is_returned_at_no_cost_if_the_client_disconnects_during_the_insert(
    blocking: Api,
    blocking_broker: RunningBroker,
    blocking_database: TestDatabase,
    background: Background,
    eventually: Eventually,
) -> None:
    poll = RawClaim(blocking_broker.base, {"queues": [blocking.queue], "wait_seconds": 25})
    eventually(lambda: sleeping_pollers(blocking_broker) == 1)
    with inserts_blocked(blocking_database):
        stored = background.submit(blocking.enqueue)
        eventually(lambda: blocking_database.value(SLEEPING) == 1)
        poll.cut()
        wait_until_read(blocking.http)
    job = stored.result(20)
    eventually(lambda: blocking.job(job["id"])["state"] == "ready")
    after = blocking.job(job["id"])
    assert (after["attempt"], after["crashes"], after["deliveries"]) == (0, 0, 1)
    assert blocking.claim_one()["attempt"] == 1


@pytest.mark.slow
def test_poller_whose_wait_ends_during_the_insert_still_gets_the_job(
    blocking: Api,
    blocking_broker: RunningBroker,
    blocking_database: TestDatabase,
    background: Background,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "RESERVATION_TIMEOUT", 60.0)
    poll = background.claim(blocking, wait_seconds=3)
    eventually(lambda: sleeping_pollers(blocking_broker) == 1)
    with inserts_blocked(blocking_database):
        stored = background.submit(blocking.enqueue)
        eventually(lambda: blocking_database.value(SLEEPING) == 1)
        eventually(lambda: sleeping_pollers(blocking_broker) == 0)
        assert not poll.done()
    assert poll.result(20)["jobs"][0]["id"] == stored.result(20)["id"]


@pytest.mark.slow
def test_poller_does_not_wait_forever_for_a_reserved_job(
    blocking: Api,
    blocking_broker: RunningBroker,
    blocking_database: TestDatabase,
    background: Background,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job, stored later as leased to the poller, is returned at no cost."""
    monkeypatch.setattr(poller, "RESERVATION_TIMEOUT", 0.01)
    poll = background.claim(blocking, wait_seconds=3)
    eventually(lambda: sleeping_pollers(blocking_broker) == 1)
    with inserts_blocked(blocking_database):
        stored = background.submit(blocking.enqueue)
        assert poll.result(20)["jobs"] == []
    job = stored.result(20)
    eventually(lambda: blocking.job(job["id"])["state"] == "ready")
    assert blocking.claim_one()["attempt"] == 1
    assert blocking.job(job["id"])["crashes"] == 0


def test_job_whose_insert_has_an_unknown_outcome_does_not_wait_for_lease_expiry(
    blocking: Api,
    blocking_broker: RunningBroker,
    proxy: Proxy,
    blocking_database: TestDatabase,
    background: Background,
    eventually: Eventually,
) -> None:
    """The connection breaks during the statement: the outcome is unknown, and Postgres commits."""
    poll = background.claim(blocking)
    eventually(lambda: sleeping_pollers(blocking_broker) == 1)
    with inserts_blocked(blocking_database):
        stored = background.submit(blocking.http.post, "/jobs", json={"queue": blocking.queue, "job_type": "test"})
        eventually(lambda: blocking_database.value(SLEEPING) == 1)
        proxy.cut()
        assert outcome(stored.result(20)) == "unknown"
    (got,) = poll.result(20)["jobs"]
    assert (got["attempt"], got["deliveries"], blocking.job(got["id"])["crashes"]) == (1, 2, 0)
