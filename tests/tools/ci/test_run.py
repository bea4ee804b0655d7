"""The CI script: a test that passes on the second run is listed; a test that fails again fails
CI."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

MAKEFILE = "test:\n\t.venv/bin/python -m pytest -q\n"
TESTS = """
import pytest
from pathlib import Path

@pytest.fixture
def once():
    seen = Path("seen")
    existed = seen.exists()
    seen.touch()
    assert existed

def test_passes(): pass
"""
FLAKY = "\ndef test_flaky(once): pass\n"
BROKEN = "\ndef test_broken(): assert False\n"


def run_ci(folder: Path, tests: str) -> tuple[bool, list[str]]:
    """Runs the script in a new project.

    Returns whether CI passed, and the tests listed as flaky."""
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "test_it.py").write_text(tests)
    ran = subprocess.run(["bash", ".ci/run"], cwd=folder, capture_output=True, text=True, check=False)
    return ran.returncode == 0, [line for line in ran.stdout.splitlines() if line.startswith("FLAKY")]


@pytest.mark.parametrize(
    ("tests", "passes", "flaky"),
    [
        (TESTS, True, []),
        (TESTS + FLAKY, True, ["FLAKY test_it.py::test_flaky"]),
        (TESTS + FLAKY + BROKEN, False, ["FLAKY test_it.py::test_flaky"]),
        (TESTS + BROKEN, False, []),
        ("not Python", False, []),
    ],
    ids=["all pass", "flaky", "flaky and broken", "broken", "cannot be imported"],
)
def test_ci_lists_flaky_tests_and_fails_for_broken_tests(
    tmp_path: Path, tests: str, passes: bool, flaky: list[str]
) -> None:
    assert run_ci(tmp_path, tests) == (passes, flaky)
