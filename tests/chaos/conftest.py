"""Stories for the tests of the checker."""

import pytest

from tests.chaos.history_builder import HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    return HistoryBuilder()


@pytest.fixture
def enqueued(history: HistoryBuilder) -> HistoryBuilder:
    history.enqueue(0, "a")
    return history
