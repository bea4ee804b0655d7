"""An empty database without a schema for each test."""

import itertools
from collections.abc import Iterator

import pytest

from tests.database import Loop, TestDatabase, create_empty_database

_numbers = itertools.count(1)


@pytest.fixture
def empty_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    """A database without a schema."""
    database = TestDatabase(create_empty_database(postgres, loop, f"blank_{next(_numbers)}"), loop)
    yield database
    database.close()
