"""Ids and lanes are those that HTTP would give: a group lives in one lane, whichever way its jobs come."""

from datetime import timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.db import lanes
from tests.api import Api, when
from tests.database import TestDatabase
from tests.sql_enqueue.conftest import Session

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

unhurried = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
groups = st.text("abcXYZ019._:-", min_size=1, max_size=120).filter(lambda name: name not in (".", ".."))


def lane(job_id: str) -> int:
    return lanes.lane_of(UUID(job_id))


def test_an_id_is_a_uuid_v7_that_tells_its_lane_and_its_time(shop: Session, api: Api, db: TestDatabase) -> None:
    api.configure(lanes=16)
    before = when(db.instant(0)) - timedelta(milliseconds=1)
    for job_id in [shop.enqueue() for _ in range(20)]:
        assert (UUID(job_id).version, UUID(job_id).variant) == (7, RFC_4122)
        assert db.value("SELECT lane FROM jobs WHERE id = $1", job_id) == lane(job_id)
        assert before <= lanes.created_at(UUID(job_id)) <= when(db.instant(0))
        assert when(api.job(job_id)["run_at"]) == lanes.created_at(UUID(job_id))


def test_ids_grow_in_a_transaction_and_across(shop: Session, rival: Session, api: Api) -> None:
    api.configure()
    with shop.transaction():
        ids = [session.enqueue() for _ in range(20) for session in (shop, rival)]
    assert ids == sorted(set(ids))


def test_jobs_by_sql_and_over_http_are_handed_out_by_age(shop: Session, api: Api) -> None:
    ids = [job_id for _ in range(3) for job_id in (shop.enqueue(), api.enqueue()["id"])]
    created = [when(api.job(job_id)["created_at"]) for job_id in ids]
    assert created == sorted(created)


def test_jobs_without_a_group_go_to_every_lane_of_their_queue(shop: Session, api: Api, db: TestDatabase) -> None:
    api.configure(lanes=3)
    queue_id = db.value("SELECT id FROM queues WHERE name = $1", api.queue)
    assert {lane(shop.enqueue()) for _ in range(100)} == set(lanes.lanes_of(queue_id, 3))


@unhurried
@given(groups, st.integers(1, 256))
@example("a", 1)
@example("a", 256)
def test_a_group_is_in_the_same_lane_by_both_ways(
    shop: Session, api: Api, db: TestDatabase, group: str, count: int
) -> None:
    db.execute("DELETE FROM jobs")
    api.configure(lanes=count)
    assert lane(shop.enqueue(group_key=group)) == lane(api.enqueue(group=group)["id"])


@unhurried
@given(st.uuids())
@example(UUID(int=0))
@example(UUID(int=2**128 - 1))
def test_any_uuid_has_the_lane_that_it_has_for_http(db: TestDatabase, job_id: UUID) -> None:
    assert db.value("SELECT longshore_lane($1)", job_id) == lanes.lane_of(job_id)


@unhurried
@given(texts)
def test_a_text_has_the_digest_that_it_has_for_http(db: TestDatabase, text: str) -> None:
    assert db.value("SELECT longshore_digest($1)", text) == lanes.shared_digest(text)


@unhurried
@given(st.integers(0, 2**24 - 1))
def test_any_lane_fits_into_an_id(db: TestDatabase, chosen: int) -> None:
    assert lanes.lane_of(db.value("SELECT longshore_id($1, clock_timestamp())", chosen)) == chosen
