"""What one broker was told holds in the others too."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import QUICK
from tests.database import TestDatabase
from tests.job_types.conftest import Put

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def other(dsn: str, db: TestDatabase, queue: str) -> Iterator[Api]:
    with threaded_broker(QUICK, dsn) as broker:
        yield Api(broker.http, queue)


def refuses(api: Api, job_type: str) -> bool:
    return api.http.post("/jobs", json={"queue": api.queue, "job_type": job_type, "payload": {}}).status_code == 422


def test_a_schema_holds_in_every_broker(put: Put, api: Api, other: Api, job_type: str, eventually: Eventually) -> None:
    put(payload_schema={"required": ["to"]})
    assert refuses(api, job_type)
    eventually(lambda: refuses(other, job_type))
    assert other.get(f"/job-types/{job_type}") == api.get(f"/job-types/{job_type}")


def test_a_deleted_type_holds_nowhere(put: Put, api: Api, other: Api, job_type: str, eventually: Eventually) -> None:
    put(payload_schema={"required": ["to"]})
    eventually(lambda: refuses(other, job_type))
    other.delete(f"/job-types/{job_type}")
    assert not refuses(other, job_type)
    eventually(lambda: not refuses(api, job_type))


def test_a_broker_that_starts_later_knows_all_types(put: Put, dsn: str, queue: str, job_type: str) -> None:
    put(payload_schema={"required": ["to"]})
    with threaded_broker(QUICK, dsn) as broker:
        assert refuses(Api(broker.http, queue), job_type)
