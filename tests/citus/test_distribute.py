"""`longshore distribute` on a cluster: every table has its kind, and a repeated run does what is
missing."""

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker
from tests.conftest import wait_until
from tests.contract.cli.command import run
from tests.database import TestDatabase

pytestmark = pytest.mark.citus


def schema_check(api: Api) -> str:
    return next(str(check["detail"]) for check in api.get("/readyz")["checks"] if check["name"] == "schema")


def test_repeated_check_finds_no_missing_step(cluster: TestDatabase) -> None:
    for option in ("--check", "--dry-run"):
        checked = run("distribute", option, DATABASE_URL=cluster.dsn)
        assert (checked.returncode, checked.stdout) == (0, "Nothing is missing.\n")


def test_readyz_names_a_table_that_is_not_distributed_and_a_repeated_run_distributes_it(
    cluster: TestDatabase, cluster_broker: RunningBroker
) -> None:
    api = Api(cluster_broker.http, "readyz")
    assert schema_check(api) == "at 0001"
    cluster.execute("SELECT undistribute_table('stat_rates')")
    assert "degraded: not distributed: stat_rates" in schema_check(api)
    checked = run("distribute", "--check", DATABASE_URL=cluster.dsn)
    assert (checked.returncode, checked.stdout) == (1, "missing: shard stat_rates by lane\n")
    repeated = run("distribute", DATABASE_URL=cluster.dsn)
    assert repeated.stdout.splitlines()[0] == "shard stat_rates by lane"
    assert schema_check(api) == "at 0001"


def test_database_without_the_extension_is_refused(dsn: str) -> None:
    refused = run("distribute", DATABASE_URL=dsn)
    assert refused.returncode == 1
    assert refused.stderr.startswith("longshore: the database has no extension citus")


def test_partitions_of_finished_jobs_are_created_and_retired(cluster: TestDatabase) -> None:
    assert cluster.value("SELECT create_finished_partition('2020-01-01', false)")
    kind = "SELECT citus_table_type FROM citus_tables WHERE table_name = 'finished_jobs_20200101'::regclass"
    assert cluster.value(kind) == "distributed"
    assert cluster.value("SELECT retire_finished_partition('finished_jobs_20200101', false)")


def test_jobs_are_enqueued_listed_and_repaired(cluster: TestDatabase, cluster_broker: RunningBroker) -> None:
    """Over HTTP and SQL, in several lanes, which are on several nodes. The leader repairs the
    queue, so the statement `lead` works, too."""
    api = Api(cluster_broker.http, "lanes")
    api.configure(lanes=32)
    ids = set(api.enqueue_many(50))
    ids.add(str(cluster.value("SELECT longshore_enqueue_v1('test', queue => 'lanes')")))
    assert {job["id"] for page in api.pages("/jobs", queue="lanes", limit=20) for job in page} == ids
    cluster.execute("UPDATE queues SET deleted_at = now() WHERE name = 'lanes'")
    cluster.execute("UPDATE config_versions SET number = number + 1")
    wait_until(lambda: cluster.value("SELECT deleted_at IS NULL FROM queues WHERE name = 'lanes'"))


def test_caller_with_another_date_style_stores_the_same_instant(cluster: TestDatabase) -> None:
    """Citus sends constants in the style of the session."""
    with cluster.uncommitted("SET LOCAL datestyle = 'SQL, DMY'") as execute:
        call = "longshore_enqueue_v1('test', queue => 'dates', run_at => timestamptz '05/12/2026 00:00:00+00')"
        execute(f"SELECT {call}")
        execute("COMMIT")
    run_at = cluster.value("SELECT max(run_at)::text FROM jobs WHERE job_type = 'test' AND state = 'scheduled'")
    assert run_at.startswith("2026-12-05")
