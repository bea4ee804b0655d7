"""A change of a job type takes effect in all brokers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.job_types.conftest import Put
from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import TestDatabase

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def other_broker(dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        yield broker


@pytest.fixture
def other_api(other_broker: RunningBroker, db: TestDatabase, queue: str) -> Api:
    return Api(other_broker.http, queue)


def rejects(api: Api, job_type: str) -> bool:
    return api.http.post("/jobs", json={"queue": api.queue, "job_type": job_type, "payload": {}}).status_code == 422


def test_new_schema_takes_effect_in_every_broker(
    put: Put, api: Api, other_api: Api, job_type: str, eventually: Eventually
) -> None:
    put(payload_schema={"required": ["to"]})
    assert rejects(api, job_type)
    eventually(lambda: rejects(other_api, job_type))
    assert other_api.get(f"/job-types/{job_type}") == api.get(f"/job-types/{job_type}")


def test_deleted_job_type_has_no_effect_in_any_broker(
    put: Put, api: Api, other_api: Api, job_type: str, eventually: Eventually
) -> None:
    put(payload_schema={"required": ["to"]})
    eventually(lambda: rejects(other_api, job_type))
    other_api.delete(f"/job-types/{job_type}")
    assert not rejects(other_api, job_type)
    eventually(lambda: not rejects(api, job_type))


def test_broker_that_starts_later_loads_all_job_types(put: Put, dsn: str, queue: str, job_type: str) -> None:
    put(payload_schema={"required": ["to"]})
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        assert rejects(Api(broker.http, queue), job_type)
