"""A broker started before the migration: alive, not ready, names the missing revision, and
recovers."""

from pathlib import Path

from app.db import migrations
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase
from tests.upgrades.later_revisions import BASELINE, later_revisions


def test_broker_on_an_empty_database_is_not_ready_and_rejects_jobs(empty_database: TestDatabase) -> None:
    """The response is 503 and not 401, although there is no table of keys: clients treat 401 as
    permanent."""
    with threaded_broker(TEST_SETTINGS, empty_database.dsn) as broker:
        api = Api(broker.http, "mail")
        api.get("/livez")
        readiness = api.get("/readyz", status=503)
        (schema,) = [check for check in readiness["checks"] if check["name"] == "schema"]
        assert not schema["ok"]
        assert migrations.head() in schema["detail"]
        rejected = api.post("/jobs", {"queue": "mail", "job_type": "welcome"}, status=503)
        assert (rejected["code"], rejected["outcome"]) == ("database_unavailable", "not_done")


def test_broker_on_an_older_schema_is_not_ready_until_it_is_migrated(
    empty_database: TestDatabase, tmp_path: Path
) -> None:
    migrations.upgrade(empty_database.dsn)
    empty_database.execute("ALTER TABLE jobs RENAME payload TO body")  # as before a migration that a job needs
    with later_revisions(tmp_path), threaded_broker(TEST_SETTINGS, empty_database.dsn) as broker:
        api = Api(broker.http, "mail")
        assert api.get("/livez")["status"] == "alive"
        (schema,) = [check for check in api.get("/readyz", status=503)["checks"] if not check["ok"]]
        assert f"at {BASELINE}, this release needs {migrations.head()}" in schema["detail"]
        assert api.enqueue(status=503)["outcome"] == "not_done"
        empty_database.execute("ALTER TABLE jobs RENAME body TO payload")
        migrations.upgrade(empty_database.dsn)
        assert api.get("/readyz")["ready"]
        job = api.enqueue()
        assert api.claim_one()["id"] == job["id"]


def test_broker_serves_as_soon_as_the_schema_exists(empty_database: TestDatabase) -> None:
    with threaded_broker(TEST_SETTINGS, empty_database.dsn) as broker:
        api = Api(broker.http, "mail")
        api.get("/readyz", status=503)
        migrations.upgrade(empty_database.dsn)
        assert api.get("/readyz")["ready"]
        job = api.enqueue()
        assert api.claim_one()["id"] == job["id"]


def test_broker_is_ready_on_the_schema_of_a_newer_release(empty_database: TestDatabase) -> None:
    """A deployment migrates first: brokers of the old release continue until they are replaced."""
    migrations.upgrade(empty_database.dsn)
    empty_database.execute("UPDATE alembic_version SET version_num = '9999'")
    with threaded_broker(TEST_SETTINGS, empty_database.dsn) as broker:
        readiness = Api(broker.http, "mail").get("/readyz")
        assert [check["detail"] for check in readiness["checks"] if check["name"] == "schema"] == ["at 9999"]


def test_broker_is_not_ready_on_a_schema_without_revision(empty_database: TestDatabase) -> None:
    migrations.upgrade(empty_database.dsn)
    empty_database.execute("DELETE FROM alembic_version")
    with threaded_broker(TEST_SETTINGS, empty_database.dsn) as broker:
        readiness = Api(broker.http, "mail").get("/readyz", status=503)
        (schema,) = [check for check in readiness["checks"] if not check["ok"]]
        assert migrations.head() in schema["detail"]
