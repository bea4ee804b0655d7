"""Runs `python -m app` as an operator does."""

import os
import subprocess
import sys


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment; its only Longshore settings are `variables`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LONGSHORE_") and name != "DATABASE_URL"
    }
    return {**inherited, **variables}


def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
    )
