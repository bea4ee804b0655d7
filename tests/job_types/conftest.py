"""Job types of a test's own: they stay in the database, as brokers cache them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api, Json

Put = Callable[..., Json]


@pytest.fixture
def job_type(queue: str) -> str:
    return f"{queue}.send"


@pytest.fixture
def put(api: Api, job_type: str) -> Put:
    """Configures this test's type."""

    def put(*, status: int = 200, **config: Any) -> Json:
        told: Json = api.put(f"/job-types/{job_type}", config, status=status)
        return told

    return put
