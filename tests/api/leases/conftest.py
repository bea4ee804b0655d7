"""A broker that never polls for ready jobs, and a watch on the claim statement.

Only wake-ups wake the pollers of this broker.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase, create_database

WATCH_CLAIMS = """
CREATE TABLE claim_statements (at timestamptz DEFAULT clock_timestamp());
CREATE TABLE claims_held (since timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION wait_while_held() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM claims_held) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
END
$$;

-- A claim that has picked jobs waits before it updates them.
CREATE FUNCTION hold_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_query() LIKE '%claim_jobs(%' THEN
        PERFORM wait_while_held();
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER hold_claim BEFORE UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION hold_claim();

-- Counts all claims. One that has found no job waits at its end.
ALTER FUNCTION claim_jobs RENAME TO claim_jobs_unwatched;
DO $do$
DECLARE
    claim regproc := 'claim_jobs_unwatched';
    arguments text := (
        SELECT string_agg('$' || n, ', ') FROM generate_series(1, (SELECT pronargs FROM pg_proc WHERE oid = claim)) AS n
    );
BEGIN
    EXECUTE format(
        $format$CREATE FUNCTION claim_jobs(%s) RETURNS %s LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO claim_statements DEFAULT VALUES;
            RETURN QUERY SELECT * FROM claim_jobs_unwatched(%s);
            IF NOT FOUND THEN
                PERFORM wait_while_held();
            END IF;
        END
        $$$format$,
        pg_get_function_arguments(claim), pg_get_function_result(claim), arguments
    );
END
$do$;
"""


class ClaimStatements:
    """Counts the claim statements that have run, and can block them while they run."""

    def __init__(self, db: TestDatabase) -> None:
        self._db = db

    def count(self) -> int:
        return int(self._db.value("SELECT count(*) FROM claim_statements"))

    def forget(self) -> None:
        self._db.execute("DELETE FROM claim_statements")

    def running(self) -> int:
        return int(
            self._db.value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            )
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        self._db.execute("INSERT INTO claims_held DEFAULT VALUES")
        try:
            yield
        finally:
            self._db.execute("DELETE FROM claims_held")


@pytest.fixture
def expire(api: Api, db: TestDatabase) -> Callable[[Json], None]:
    """Lets a lease of the default length expire, and waits for the lease rescuer."""

    def expire_lease(job: Json) -> None:
        db.age(job["id"], 61)
        wait_until(lambda: api.job(job["id"])["state"] != "running")

    return expire_lease


@pytest.fixture(scope="session")
def quiet_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "quiet"), loop)
    database.execute(WATCH_CLAIMS)
    yield database
    database.close()


@pytest.fixture(scope="package")
def quiet_broker(quiet_database: TestDatabase) -> Iterator[RunningBroker]:
    settings = TEST_SETTINGS.model_copy(
        update={"poll_seconds": 3600.0, "notify": False, "pool_size": 4, "max_parked_polls": 60}
    )
    with threaded_broker(settings, quiet_database.dsn) as broker:
        yield broker


@pytest.fixture
def quiet_db(quiet_database: TestDatabase) -> TestDatabase:
    quiet_database.empty()
    return quiet_database


@pytest.fixture
def quiet(quiet_broker: RunningBroker, quiet_db: TestDatabase, queue: str) -> Api:
    """The API of a broker that is alone on its database and never polls for ready jobs.

    A poller that wakes up here was woken.
    """
    api = Api(quiet_broker.http, queue)
    api.enqueue()  # so that the queue exists
    quiet_db.empty()
    return api


@pytest.fixture
def claim_statements(quiet_db: TestDatabase) -> ClaimStatements:
    statements = ClaimStatements(quiet_db)
    statements.forget()
    return statements
