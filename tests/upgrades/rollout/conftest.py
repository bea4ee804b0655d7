"""Skips tests that need the previous release or a mount namespace where these are not available.

The end of the test run lists the skipped tests."""

from pathlib import Path

import pytest

from tests.upgrades.rollout import releases, sandbox

collect_ignore = [
    *([] if releases.IS_AVAILABLE else ["test_releases.py"]),
    *([] if sandbox.IS_AVAILABLE else ["test_read_only_sandbox.py"]),
]


@pytest.fixture(scope="package")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the previous release."""
    return releases.unpack(tmp_path_factory.mktemp("previous"))
