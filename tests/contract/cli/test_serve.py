"""`serve` with an embedded Postgres: log lines, banner, clean stop of Postgres, data that
survives."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest

from app import RELEASE
from app.db.migrations import ROOT, head
from tests.api_client import Json
from tests.conftest import wait_until
from tests.contract.cli.command import environment, run
from tests.faults.db.test_embedded import is_alive, postmaster_pid

pytestmark = pytest.mark.slow


@contextmanager
def new_folder() -> Iterator[Path]:
    """The user of Postgres can open the folder. If root runs the tests, that is another user."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name, "data")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A data folder for most tests of this module, because initdb is slow."""
    with new_folder() as folder:
        yield folder


@contextmanager
def serving(folder: Path, *arguments: str, errors: int = subprocess.PIPE) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "app", "serve", *arguments]
    variables = environment(LONGSHORE_PORT="0", LONGSHORE_DATA_DIR=str(folder))
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_started(process: "subprocess.Popen[str]") -> Json:
    """Waits for the log line `broker started` and returns it; discards the lines before it."""
    assert process.stderr is not None
    lines = (json.loads(line) for line in process.stderr)
    line: Json = next(line for line in lines if line["event"] == "broker started")
    return line


def lines_until(process: "subprocess.Popen[str]", event: str) -> list[Json]:
    assert process.stderr is not None
    lines: list[Json] = []
    while not lines or lines[-1]["event"] != event:
        lines.append(json.loads(process.stderr.readline()))
    return lines


def stop(process: "subprocess.Popen[str]", number: signal.Signals, folder: Path) -> list[Json]:
    """Stops the broker, checks that stdout is empty, and returns the remaining log lines."""
    pid = postmaster_pid(folder / "postgres")
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (0, ""), errors
    assert not is_alive(pid)
    return [json.loads(line) for line in (errors or "").splitlines()]


def test_log_from_start_to_shutdown_is_json_with_one_line_per_step(folder: Path) -> None:
    """Uses a new data folder, a Postgres that is killed, a held lease and a parked poll."""
    with serving(folder) as process:
        first = wait_until_started(process)
        base = first["address"]
        assert httpx.post(f"{base}/jobs", json={"job_type": "kept"}, timeout=60).status_code == 201
        assert httpx.post(f"{base}/claim", json={}, timeout=60).json()["jobs"]
        pid = postmaster_pid(folder / "postgres")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        wait_until(lambda: httpx.get(f"{base}/readyz", timeout=60).status_code == 200, seconds=60)
        lines = lines_until(process, "LISTEN/NOTIFY connection restored")
        poll = threading.Thread(
            target=httpx.post, args=[f"{base}/claim"], kwargs={"json": {"wait_seconds": 30}, "timeout": 60}
        )
        poll.start()
        wait_until(lambda: httpx.get(f"{base}/stats", timeout=60).json()["waiting_polls"] == 1)
        lines += stop(process, signal.SIGTERM, folder)
        poll.join()
    steps = [line for line in lines if line["event"] in ("broker draining", "broker stopped", "shutdown complete")]
    losses = ("embedded postgres exited, restarting", "LISTEN/NOTIFY connection lost")
    returns = ("embedded postgres restarted", "LISTEN/NOTIFY connection restored")
    assert Counter(line["event"] for line in lines if line["event"] in losses + returns) == Counter(losses + returns)
    assert [line["event"] for line in steps] == ["broker draining", "broker stopped", "shutdown complete"]
    assert {(line["release"], line["address"]) for line in [first, *steps]} == {(RELEASE, base)}
    assert {line["schema"] for line in [first, *steps]} == {head()}
    draining, stopped, complete = steps
    assert (draining["reason"], draining["parked_polls"]) == ("SIGTERM", 1)
    assert draining["requests"] >= 1, "the poll, and perhaps one whose response has just been sent"
    for line in (stopped, complete):
        assert (line["leases"], line["requests"], line["connections"]) == (1, 0, 0)


def test_broker_serves_and_stops_cleanly_after_the_reader_of_its_log_exited(folder: Path) -> None:
    """Pausing a queue is logged after its commit."""
    with serving(folder) as process:
        base = wait_until_started(process)["address"]
        assert process.stderr is not None
        process.stderr.close()
        for path in ("/queues/silent", "/queues/silent/pause"):
            method = "POST" if path.endswith("pause") else "PUT"
            assert httpx.request(method, f"{base}{path}", json={}, timeout=60).status_code < 300
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_closed_terminal_stops_the_broker_like_sigterm(folder: Path) -> None:
    with serving(folder) as process:
        wait_until_started(process)
        lines = stop(process, signal.SIGHUP, folder)
    assert [line["event"] for line in lines] == ["broker draining", "broker stopped", "shutdown complete"]


def test_terminal_gets_a_banner_with_working_commands(folder: Path) -> None:
    check_banner(folder, "127.0.0.2")


def test_command_of_a_refused_start_creates_the_key_for_the_banner() -> None:
    """Runs the command as printed, without the variables of the start."""
    with new_folder() as folder:
        refused = run("serve", "--host", "0.0.0.0", LONGSHORE_PORT="0", LONGSHORE_DATA_DIR=str(folder))
        (command,) = re.findall("`(.+)`", json.loads(refused.stderr.splitlines()[-1])["detail"])
        check_banner(folder, "0.0.0.0", LONGSHORE_KEY=shell(command).strip())


def check_banner(folder: Path, host: str, **variables: str) -> None:
    """Runs the commands of the banner; they succeed."""
    master, slave = pty.openpty()
    with serving(folder, "--host", host, errors=slave) as process, os.fdopen(master) as terminal:
        os.close(slave)
        lines = (line.strip() for line in iter(terminal.readline, ""))
        banner = list(islice((line for line in lines if not line.startswith("{")), 6))
        assert banner[0].startswith(f"Longshore listens on http://{host}:")
        assert str(folder) in banner[1]
        assert [line.split()[0] for line in banner[3:]] == ["curl"] * 3
        bodies = [json.loads(shell(line, **variables)) for line in banner[3:]]
        assert [body for body in bodies if body.get("status", 200) != 200] == []
        stop(process, signal.SIGTERM, folder)


def shell(command: str, **variables: str) -> str:
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_keeps_the_data_and_second_broker_names_the_owner_of_the_folder(folder: Path) -> None:
    with serving(folder) as process:
        job = httpx.post(f"{wait_until_started(process)['address']}/jobs", json={"job_type": "kept"}, timeout=60).json()
        stop(process, signal.SIGINT, folder)
    with serving(folder) as process:
        assert (
            httpx.get(f"{wait_until_started(process)['address']}/jobs/{job['id']}", timeout=60).json()["state"]
            == "ready"
        )
        second = run("serve", LONGSHORE_PORT="0", LONGSHORE_DATA_DIR=str(folder))
        assert second.returncode == 1
        assert f"process {process.pid}" in json.loads(second.stderr)["detail"]
        stop(process, signal.SIGTERM, folder)


def test_serve_without_database_reports_address_and_cause() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        refused = (f"the database refuses connections at {address}", "the database refuses connections")
        unknown = ("unknown host name nowhere.invalid", "the host name of the database is unknown")
        causes = {host: start_without_database(host) for host in (address, "nowhere.invalid")}
    assert causes == {address: (*refused, refused[1]), "nowhere.invalid": (*unknown, unknown[1])}


def start_without_database(host: str) -> tuple[str, str, str]:
    """Returns the cause as reported by the log, by `/readyz` and by a response.

    Only the log names the host. No line contains the password or reports a silent database."""
    variables = environment(
        LONGSHORE_PORT="0",
        LONGSHORE_SILENT_SECONDS="0.5",
        DATABASE_URL=f"postgresql://u:hunter2@{host}/x?sslmode=disable",
    )
    command = [sys.executable, "-m", "app", "serve"]
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[Json] = []
        while not {"broker started", "database unreachable, connections terminated"} <= {
            line["event"] for line in lines
        }:
            lines.append(json.loads(process.stderr.readline()))
        base = next(line["address"] for line in lines if line["event"] == "broker started")
        ready = httpx.get(f"{base}/readyz", timeout=60).json()["checks"][0]["detail"]
        response = httpx.get(f"{base}/jobs", timeout=60).json()["detail"]
        process.send_signal(signal.SIGTERM)
        _, remaining = process.communicate(timeout=60)
    assert "hunter" not in json.dumps(lines) + remaining
    (cause,) = [line["detail"] for line in lines if line["event"] == "database unreachable, waiting for it"]
    return cause, ready, response


def test_port_in_use_fails_before_anything_is_created(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        failed = run("serve", "--port", str(port), LONGSHORE_DATA_DIR=str(tmp_path / "data"))
    line = json.loads(failed.stderr)
    assert (failed.returncode, line["event"], line["level"]) == (1, "broker not started", "error")
    assert f"port {port}: Address already in use" in line["detail"]
    assert list(tmp_path.iterdir()) == []
