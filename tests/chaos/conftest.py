"""Stories for the tests of the checker."""

import pytest

from tests.chaos.story import Story


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def enqueued(story: Story) -> Story:
    story.enqueue(0, "a")
    return story
