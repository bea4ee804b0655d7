"""What is tried only where it is at hand, and said at the end of the run where it is not: the release before, and a sealed file system."""

from pathlib import Path

import pytest

from tests.change import releases, sealed

collect_ignore = [*([] if releases.IS_AVAILABLE else ["test_releases.py"]), *([] if sealed.IS_AVAILABLE else ["test_sealed.py"])]


@pytest.fixture(scope="package")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the release before."""
    return releases.unpack(tmp_path_factory.mktemp("previous"))
