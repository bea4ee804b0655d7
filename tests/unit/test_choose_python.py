"""`tools/choose_python.py`, which chooses the Python of .venv."""

import subprocess
import sys
from pathlib import Path

from app.db.migrations import ROOT

DISTRIBUTION = "/usr/bin/python3"


def choose(python: str) -> str:
    return run(sys.executable, str(ROOT / "tools/choose_python.py"), python)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout.strip()


def interpreter(folder: Path, *, optimized: bool) -> str:
    """Writes a program that answers like an interpreter built with or without optimizations."""
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\necho True {optimized} {program}\n")
    program.chmod(0o755)
    return str(program)


def is_supported(python: str) -> bool:
    return Path(python).exists() and run(python, "-c", "import sys; print(sys.version_info >= (3, 11))") == "True"


def test_optimized_python_is_chosen(tmp_path: Path) -> None:
    python = interpreter(tmp_path, optimized=True)
    assert choose(python) == python


def test_python_of_the_distribution_replaces_one_without_optimizations(tmp_path: Path) -> None:
    python = interpreter(tmp_path, optimized=False)
    assert choose(python) == (DISTRIBUTION if is_supported(DISTRIBUTION) else python)


def test_chosen_python_can_run_longshore() -> None:
    assert is_supported(choose(sys.executable))
