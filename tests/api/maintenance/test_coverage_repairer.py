"""The coverage repairer finds ready and running jobs that no span and no check covers.

The broker of these tests neither repairs nor ends leases, so that only the test does."""

from collections.abc import Iterator

import pytest

from app.broker import Broker, build_broker
from app.maintenance.coverage_repairer import PAGE_JOBS, CoverageRepairer
from tests.api_client import Api
from tests.conftest import TEST_SETTINGS
from tests.coverage import UNCOVERED_JOBS
from tests.database import Loop, TestDatabase


@pytest.fixture(scope="module", autouse=True)
def leading(database_without_scans: TestDatabase) -> Iterator[None]:
    """The broker, which starts afterwards, does not repair."""
    with database_without_scans.leading("coverage repair"):
        yield


@pytest.fixture
def services(db_without_scans: TestDatabase, loop: Loop) -> Iterator[Broker]:
    services = build_broker(TEST_SETTINGS, db_without_scans.dsn)
    loop.run(services.infra.db.open())
    loop.run(services.infra.clock.refresh(services.infra.db))
    yield services
    loop.run(services.infra.db.close())


@pytest.fixture
def repairer(services: Broker) -> CoverageRepairer:
    return CoverageRepairer(infra=services.infra)


def uncovered(db: TestDatabase) -> list[str]:
    return [row["fault"] for row in db.rows(UNCOVERED_JOBS)]


def repaired(services: Broker) -> float:
    return float(services.infra.metrics.coverage_repaired._value.get())


def test_ready_jobs_without_a_span_can_be_claimed_after_a_repair(
    api_without_scans: Api, db_without_scans: TestDatabase, services: Broker, repairer: CoverageRepairer, loop: Loop
) -> None:
    ids = api_without_scans.enqueue_many(3)
    db_without_scans.execute("DELETE FROM ready_spans")
    assert len(uncovered(db_without_scans)) == 3
    assert api_without_scans.claim(max_jobs=3)["jobs"] == []
    loop.run(repairer.run_once())
    assert uncovered(db_without_scans) == []
    assert [job["id"] for job in api_without_scans.claim(max_jobs=3)["jobs"]] == ids
    assert repaired(services) == 3


def test_running_jobs_without_a_check_expire_after_a_repair(
    api_without_scans: Api, db_without_scans: TestDatabase, services: Broker, repairer: CoverageRepairer, loop: Loop
) -> None:
    ids = api_without_scans.enqueue_many(3)
    api_without_scans.claim(max_jobs=3)
    db_without_scans.execute("DELETE FROM lease_checks")
    db_without_scans.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second' WHERE id = $1", ids[0])
    assert len(uncovered(db_without_scans)) == 3
    loop.run(repairer.run_once())
    assert uncovered(db_without_scans) == []
    loop.run(services.due_check.services["lease rescuer"].run_once())
    assert [api_without_scans.job(job_id)["state"] for job_id in ids] == ["ready", "running", "running"]
    assert repaired(services) == 1  # a check for the claim


def test_check_that_does_not_list_a_job_of_its_claim_is_completed(
    api_without_scans: Api, db_without_scans: TestDatabase, repairer: CoverageRepairer, loop: Loop
) -> None:
    api_without_scans.enqueue_many(3)
    api_without_scans.claim(max_jobs=3)
    db_without_scans.execute("UPDATE lease_checks SET job_ids = job_ids[1:1]")
    assert len(uncovered(db_without_scans)) == 2
    loop.run(repairer.run_once())
    assert uncovered(db_without_scans) == []


def test_covered_jobs_are_left_alone(
    api_without_scans: Api, db_without_scans: TestDatabase, services: Broker, repairer: CoverageRepairer, loop: Loop
) -> None:
    api_without_scans.enqueue_many(5)
    api_without_scans.release(api_without_scans.claim_one())
    api_without_scans.claim_one()
    before = db_without_scans.rows("SELECT * FROM ready_spans"), db_without_scans.rows("SELECT * FROM lease_checks")
    loop.run(repairer.run_once())
    assert before == (
        db_without_scans.rows("SELECT * FROM ready_spans"),
        db_without_scans.rows("SELECT * FROM lease_checks"),
    )
    assert repaired(services) == 0


def test_empty_spans_of_a_queue_without_claims_are_deleted(
    api_without_scans: Api, db_without_scans: TestDatabase, repairer: CoverageRepairer, loop: Loop
) -> None:
    kept = api_without_scans.enqueue()
    api_without_scans.batch({"priority": 1}, {"priority": 1}, {"priority": -1})
    api_without_scans.post(f"/queues/{api_without_scans.queue}/purge", {"dry_run": False})
    kept = api_without_scans.enqueue()
    assert db_without_scans.value("SELECT count(*) FROM ready_spans") == 4
    loop.run(repairer.run_once())
    assert [str(row["first_id"]) for row in db_without_scans.rows("SELECT first_id FROM ready_spans")] == [kept["id"]]


def test_span_locked_by_a_claim_is_not_deleted(
    api_without_scans: Api, db_without_scans: TestDatabase, repairer: CoverageRepairer, loop: Loop
) -> None:
    api_without_scans.cancel(api_without_scans.enqueue())
    with db_without_scans.uncommitted("SELECT FROM ready_spans FOR UPDATE"):
        loop.run(repairer.run_once())
    assert db_without_scans.value("SELECT count(*) FROM ready_spans") == 1
    loop.run(repairer.run_once())
    assert db_without_scans.value("SELECT count(*) FROM ready_spans") == 0


@pytest.mark.slow
def test_more_jobs_than_a_page_are_repaired_page_by_page(
    api_without_scans: Api, db_without_scans: TestDatabase, repairer: CoverageRepairer, loop: Loop
) -> None:
    for _ in range(2):
        api_without_scans.enqueue_many(PAGE_JOBS // 2 + 1)
    db_without_scans.execute("DELETE FROM ready_spans")
    loop.run(repairer.run_once())
    assert len(uncovered(db_without_scans)) == 2
    loop.run(repairer.run_once())
    assert uncovered(db_without_scans) == []
    db_without_scans.execute("DELETE FROM ready_spans")
    loop.run(repairer.run_once())
    assert len(uncovered(db_without_scans)) == 2, "begins with the first page again"
