"""Histories for the tests of the checker."""

import pytest

from tests.chaos.history_builder import HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    return HistoryBuilder()


@pytest.fixture
def one_job(history: HistoryBuilder) -> HistoryBuilder:
    history.enqueue(0, "a")
    return history
