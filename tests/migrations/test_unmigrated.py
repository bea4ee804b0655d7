"""A broker that was started before its schema: alive, not ready, says what is missing, and recovers by itself."""

from alembic import command
from app.db import migrations
from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase


def test_a_broker_on_an_empty_database_says_which_revision_is_missing_and_does_nothing(blank: TestDatabase) -> None:
    with threaded_broker(QUICK, blank.dsn) as broker:
        api = Api(broker.http, "mail")
        api.get("/livez")
        readiness = api.get("/readyz", status=503)
        (schema,) = [check for check in readiness["checks"] if check["name"] == "schema"]
        assert not schema["ok"]
        assert migrations.head() in schema["detail"]
        refused = api.post("/jobs", {"queue": "mail", "job_type": "welcome"}, status=503)
        assert (refused["code"], refused["outcome"]) == ("database_unavailable", "not_done")


def test_a_broker_on_the_schema_of_the_release_before_says_so_and_serves_once_it_is_migrated(
    blank: TestDatabase,
) -> None:
    """503 and no 401, though there is no table of keys: clients would take that for the last word."""
    command.upgrade(migrations.config(blank.dsn), "0004")
    with threaded_broker(QUICK, blank.dsn) as broker:
        api = Api(broker.http, "mail")
        assert api.get("/livez")["status"] == "alive"
        (schema,) = [check for check in api.get("/readyz", status=503)["checks"] if not check["ok"]]
        assert f"at 0004, this release needs {migrations.head()}" in schema["detail"]
        assert api.enqueue(status=503)["outcome"] == "not_done"
        migrations.upgrade(blank.dsn)
        assert api.get("/readyz")["ready"]
        job = api.enqueue()
        assert api.claim_one()["id"] == job["id"]


def test_it_serves_as_soon_as_the_schema_is_there(blank: TestDatabase) -> None:
    with threaded_broker(QUICK, blank.dsn) as broker:
        api = Api(broker.http, "mail")
        api.get("/readyz", status=503)
        migrations.upgrade(blank.dsn)
        assert api.get("/readyz")["ready"]
        job = api.enqueue()
        assert api.claim_one()["id"] == job["id"]


def test_a_broker_stays_ready_on_the_schema_of_a_newer_release(blank: TestDatabase) -> None:
    """A deploy migrates first: the brokers of the old release go on until they are replaced."""
    migrations.upgrade(blank.dsn)
    blank.execute("UPDATE alembic_version SET version_num = '9999'")
    with threaded_broker(QUICK, blank.dsn) as broker:
        readiness = Api(broker.http, "mail").get("/readyz")
        assert [check["detail"] for check in readiness["checks"] if check["name"] == "schema"] == ["at 9999"]


def test_a_broker_is_not_ready_on_a_schema_of_no_revision(blank: TestDatabase) -> None:
    migrations.upgrade(blank.dsn)
    blank.execute("DELETE FROM alembic_version")
    with threaded_broker(QUICK, blank.dsn) as broker:
        readiness = Api(broker.http, "mail").get("/readyz", status=503)
        (schema,) = [check for check in readiness["checks"] if not check["ok"]]
        assert migrations.head() in schema["detail"]
