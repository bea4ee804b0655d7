"""`serve` with an embedded Postgres: says where it is, stops cleanly with it, keeps the data."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.command import environment, run
from tests.db.test_embedded import alive, postmaster


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One for all tests here, as initdb is the slow part; open to the user that Postgres runs as when we are root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name, "data")


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """The process, and the lines that it greets with."""
    command = [sys.executable, "-m", "app", "serve", *arguments]
    given = environment(LONGSHORE_PORT="0", LONGSHORE_DATA_DIR=str(folder))
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, [process.stdout.readline().strip() for _ in range(6)]
        finally:
            process.kill()


def test_it_says_where_it_is_and_what_to_try_and_stops_with_its_postgres(folder: Path) -> None:
    with serving(folder, "--host", "127.0.0.2") as (process, greeting):
        assert greeting[0].startswith("Longshore listens on http://127.0.0.2:")
        assert str(folder) in greeting[1]
        assert [line.split()[0] for line in greeting[3:]] == ["curl"] * 3
        tried = [subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60).stdout for line in greeting[3:]]
        assert [answer.startswith("{") for answer in tried] == [True] * 3
        stop(process, signal.SIGTERM, folder)


def test_ctrl_c_keeps_the_data_and_a_second_broker_hears_who_owns_it(folder: Path) -> None:
    with serving(folder) as (process, greeting):
        job = httpx.post(f"{greeting[0].split()[3]}/jobs", json={"job_type": "kept"}).json()
        stop(process, signal.SIGINT, folder)
    with serving(folder) as (process, greeting):
        assert httpx.get(f"{greeting[0].split()[3]}/jobs/{job['id']}").json()["state"] == "ready"
        second = run("serve", LONGSHORE_PORT="0", LONGSHORE_DATA_DIR=str(folder))
        assert second.returncode == 1
        assert f"process {process.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        stop(process, signal.SIGTERM, folder)


def stop(process: "subprocess.Popen[str]", number: signal.Signals, folder: Path) -> None:
    pid = postmaster(folder / "postgres")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert not alive(pid)
