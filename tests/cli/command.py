"""`python -m app` as an operator runs it."""

import os
import subprocess
import sys


def environment(**given: str) -> dict[str, str]:
    """This process's, without any setting of ours but the given ones."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LONGSHORE_") and name != "DATABASE_URL"
    }
    return {**kept, **given}


def run(*arguments: str, **given: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments], env=environment(**given), capture_output=True, text=True, timeout=120
    )
