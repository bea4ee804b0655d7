"""What is tried only where it is at hand, and said at the end of the run where it is not: the release before, and a sealed file system."""

from pathlib import Path

import pytest

from tests.change import releases, sealed

collect_ignore = [*([] if releases.AT_HAND else ["test_releases.py"]), *([] if sealed.AT_HAND else ["test_sealed.py"])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tried is said."""
    beside = "tried beside this one" if releases.AT_HAND else "not tried, as its commit is not in this clone"
    terminalreporter.write_line(f"Release before ({releases.PREVIOUS}): {beside}")
    sealing = "tried" if sealed.AT_HAND else "not tried, as no mount namespace can be made here"
    terminalreporter.write_line(f"Read-only file system without privileges: {sealing}")


@pytest.fixture(scope="package")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the release before."""
    return releases.unpack(tmp_path_factory.mktemp("previous"))
