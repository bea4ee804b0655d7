"""Races: what two callers do at the same moment, many times over. Only outcomes are asserted, never who wins."""

from collections.abc import Iterator

import pytest

from tests.polls import Background, background_calls


@pytest.fixture
def background() -> Iterator[Background]:
    with background_calls() as calls:
        yield calls
