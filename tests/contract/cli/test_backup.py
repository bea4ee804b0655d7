"""Runs the commands of docs/operations/backup.md: backup of a running broker, restore elsewhere."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.db.migrations import ROOT
from tests.api_client import Api
from tests.conftest import wait_until
from tests.contract.cli.command import environment, run
from tests.contract.cli.test_serve import serving, stop, wait_until_started
from tests.faults.db.test_embedded import postmaster_pid

pytestmark = pytest.mark.slow

BACKUP, RESTORE = re.findall(
    r"^```bash\n(.*?)^```$", (ROOT / "docs" / "operations" / "backup.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.fixture
def work_folder() -> Iterator[Path]:
    """A folder that the user of Postgres can open. If root runs the tests, that is another user."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def shell(script: str, **variables: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_backup_of_running_broker_restores_as_documented(work_folder: Path) -> None:
    data, copy, restored = work_folder / "data", work_folder / "backup", work_folder / "restored"
    with serving(data) as process, httpx.Client(base_url=wait_until_started(process)["address"], timeout=60) as http:
        api = Api(http, "mail")
        waiting, running = api.enqueue(priority=-1), api.enqueue()
        (held,) = api.claim()["jobs"]
        shell(BACKUP, BACKUP=str(copy), LONGSHORE_DATA_DIR=str(data))
        later = api.enqueue()
        api.complete(held)
        stop(process, signal.SIGTERM, data)
    prepare, _, serve = RESTORE.rstrip().rpartition("\n")
    assert serve == ".venv/bin/python -m app serve"
    printed = shell(prepare, BACKUP=str(copy), RESTORED=str(restored))
    assert printed == "1 lease ended; its job can be claimed again\n"
    with (
        serving(restored) as process,
        httpx.Client(base_url=wait_until_started(process)["address"], timeout=60) as http,
    ):
        api = Api(http, "mail")
        assert [api.job(job["id"])["state"] for job in (waiting, running)] == ["ready", "ready"]
        assert http.get(f"/jobs/{later['id']}").status_code == 404
        assert api.complete(held, status=409)["code"] == "lease_lost"
        jobs = api.claim(max_jobs=2)["jobs"]
        assert [(job["id"], job["attempt"]) for job in jobs] == [(running["id"], 1), (waiting["id"], 1)]
        stop(process, signal.SIGTERM, restored)
    refused = run("backup", str(copy), LONGSHORE_DATA_DIR=str(restored))
    assert (refused.returncode, refused.stderr) == (
        1,
        f"longshore: {copy} exists already: a backup needs a new folder\n",
    )


def test_restored_refuses_data_folder_of_running_broker(work_folder: Path) -> None:
    data = work_folder / "data"
    with serving(data) as process, httpx.Client(base_url=wait_until_started(process)["address"], timeout=60) as http:
        api = Api(http, "mail")
        api.enqueue()
        (held,) = api.claim()["jobs"]
        refused = run("restored", LONGSHORE_DATA_DIR=str(data))
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"{data / 'postgres'} is in use by process {process.pid} " in refused.stderr
        assert "; stop it, or set LONGSHORE_DATA_DIR to another folder\n" in refused.stderr
        assert api.complete(held)["state"] == "completed", "the worker keeps its lease"
        stop(process, signal.SIGTERM, data)


def test_commands_refuse_folder_without_database(work_folder: Path) -> None:
    mistyped = work_folder / "dtaa"
    commands = (
        ["backup", str(work_folder / "backup")],
        ["restored"],
        ["keys", "list"],
        ["keys", "revoke", "0123456789abcdef"],
    )
    results = {" ".join(command): run(*command, LONGSHORE_DATA_DIR=str(mistyped)) for command in commands}
    expected = f"longshore: there is no database in {mistyped}: set LONGSHORE_DATA_DIR to the folder of the broker\n"
    assert {name: (done.returncode, done.stdout, done.stderr) for name, done in results.items()} == dict.fromkeys(
        results, (1, "", expected)
    )
    assert list(work_folder.iterdir()) == []


def test_printed_commands_restore_the_backup(work_folder: Path) -> None:
    data, copy = work_folder / "data", work_folder / "a backup"
    variables = {"LONGSHORE_DATA_DIR": str(data)}
    created = run("keys", "create", "--name", "admin", "--admin", **variables)
    assert created.stderr == f"longshore: created a new database in {data}\n"
    assert run("keys", "create", "--name", "second", "--admin", **variables).stderr == "", "only once"
    title, *commands, serve = run("backup", str(copy), **variables).stdout.splitlines()
    assert title.startswith(f"{copy} is a backup of {data}.")
    assert shell("\n".join(commands)) == "no job was leased\n"
    assert steps([*commands, serve]) == steps(RESTORE.splitlines()), "printed and documented commands differ"
    setting, *command = shlex.split(serve)
    name, _, restored = setting.partition("=")
    variables = environment(LONGSHORE_PORT="0", **{name: restored})
    with subprocess.Popen(command, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert wait_until_started(process)["event"] == "broker started"
        process.send_signal(signal.SIGTERM)


def steps(commands: list[str]) -> list[str]:
    """Returns the last word of each command; of `cp` its first two words."""
    words = [shlex.split(command) for command in commands if not command.startswith("export")]
    return [" ".join(command[:2]) if command[0] == "cp" else command[-1] for command in words]


def test_backup_into_data_folder_is_refused(work_folder: Path) -> None:
    data = work_folder / "data"
    (data / "postgres" / "data").mkdir(parents=True)
    (work_folder / "link").symlink_to(data)
    for inside in (data / "backup", data / "postgres" / "b", work_folder / "link" / "backup"):
        refused = run("backup", str(inside), LONGSHORE_DATA_DIR=str(data))
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith(f"longshore: {inside} is inside the data folder {data}: "), refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_backup_prints_one_line(work_folder: Path, number: signal.Signals) -> None:
    """The test stops the postmaster first, so that the backup cannot finish before the signal."""
    data, copy = work_folder / "data", work_folder / "backup"
    with serving(data) as process:
        wait_until_started(process)
        pid = postmaster_pid(data / "postgres")
        os.kill(pid, signal.SIGSTOP)
        command = [sys.executable, "-m", "app", "backup", str(copy)]
        variables = environment(LONGSHORE_DATA_DIR=str(data))
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as backup:
            wait_until((work_folder / "backup.partial").exists)
            backup.send_signal(number)
            try:
                printed, errors = backup.communicate(timeout=60)
            finally:
                os.kill(pid, signal.SIGCONT)
        stop(process, signal.SIGTERM, data)
    assert (backup.returncode, printed) == (1, "")
    assert errors.startswith(f"longshore: interrupted: there is no backup in {copy}; "), errors
    assert len(errors.splitlines()) == 1
    assert not copy.exists()


def test_backup_of_external_postgres_is_refused(work_folder: Path) -> None:
    refused = run("backup", str(work_folder / "backup"), DATABASE_URL="postgresql://nobody@127.0.0.1:1/x")
    assert refused.returncode == 2
    assert "docs/operations/high-availability.md" in refused.stderr
