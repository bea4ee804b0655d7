"""SQL enqueue generates the ids and lanes of HTTP: a group has one lane for both."""

from datetime import timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.db import lanes
from tests.api_client import Api, parse_time
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session

# The broker of other tests in this process uses `random` too, and hypothesis warns about it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

no_deadline = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
groups = st.text("abcXYZ019._:-", min_size=1, max_size=120).filter(lambda name: name not in (".", ".."))


def lane(job_id: str) -> int:
    return lanes.lane_of(UUID(job_id))


def test_sql_job_id_is_a_uuid_v7_with_lane_and_time(shop: Session, api: Api, db: TestDatabase) -> None:
    api.configure(lanes=16)
    before = parse_time(db.instant(0)) - timedelta(milliseconds=1)
    for job_id in [shop.enqueue() for _ in range(20)]:
        assert (UUID(job_id).version, UUID(job_id).variant) == (7, RFC_4122)
        assert db.value("SELECT lane FROM jobs WHERE id = $1", job_id) == lane(job_id)
        assert before <= lanes.created_at(UUID(job_id)) <= parse_time(db.instant(0))
        assert parse_time(api.job(job_id)["run_at"]) == lanes.created_at(UUID(job_id))


def test_sql_job_ids_increase_within_and_across_transactions(shop: Session, other_session: Session, api: Api) -> None:
    api.configure()
    with shop.transaction():
        ids = [session.enqueue() for _ in range(20) for session in (shop, other_session)]
    assert ids == sorted(set(ids))


def test_sql_and_http_jobs_have_increasing_creation_times(shop: Session, api: Api) -> None:
    ids = [job_id for _ in range(3) for job_id in (shop.enqueue(), api.enqueue()["id"])]
    created = [parse_time(api.job(job_id)["created_at"]) for job_id in ids]
    assert created == sorted(created)


def test_sql_jobs_without_a_group_use_every_lane_of_the_queue(shop: Session, api: Api, db: TestDatabase) -> None:
    api.configure(lanes=3)
    queue_id = db.value("SELECT id FROM queues WHERE name = $1", api.queue)
    assert {lane(shop.enqueue()) for _ in range(100)} == set(lanes.lanes_of(queue_id, 3))


@pytest.mark.slow
@no_deadline
@given(groups, st.integers(1, 256))
@example("a", 1)
@example("a", 256)
def test_sql_and_http_put_a_group_into_the_same_lane(
    shop: Session, api: Api, db: TestDatabase, group: str, count: int
) -> None:
    db.execute("DELETE FROM jobs")
    api.configure(lanes=count)
    assert lane(shop.enqueue(group_key=group)) == lane(api.enqueue(group=group)["id"])


@no_deadline
@given(st.uuids())
@example(UUID(int=0))
@example(UUID(int=2**128 - 1))
def test_sql_and_python_read_the_same_lane_from_any_uuid(db: TestDatabase, job_id: UUID) -> None:
    assert db.value("SELECT longshore_lane_of($1)", job_id) == lanes.lane_of(job_id)


@no_deadline
@given(texts)
def test_sql_and_python_compute_the_same_digest(db: TestDatabase, text: str) -> None:
    assert db.value("SELECT longshore_digest($1)", text) == lanes.shared_digest(text)


@no_deadline
@given(st.integers(0, 2**24 - 1))
def test_job_id_can_contain_any_lane(db: TestDatabase, chosen: int) -> None:
    assert lanes.lane_of(db.value("SELECT longshore_generate_id($1, clock_timestamp())", chosen)) == chosen
