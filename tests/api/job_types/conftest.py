"""Each test has a job type of its own: job types stay in the database, because brokers cache them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api_client import Api, Json

Put = Callable[..., Json]


@pytest.fixture
def job_type(queue: str) -> str:
    return f"{queue}.send"


@pytest.fixture
def put(api: Api, job_type: str) -> Put:
    """Configures the job type of this test."""

    def put(*, status: int = 200, **config: Any) -> Json:
        response: Json = api.put(f"/job-types/{job_type}", config, status=status)
        return response

    return put
