"""The README is run: every command of the tour, the worker loop, and the tables against the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api import Api
from tests.broker import RunningBroker, threaded_broker
from tests.cli.command import environment
from tests.conftest import QUICK, wait_until
from tests.database import Loop, create_database
from tests.readme.settings_table import rows

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def code(title: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)


def tour(base: str, *blocks: str, **variables: str) -> str:
    """What these blocks print. A status of 400 or more ends them, as an error; so does any other failure."""
    strict = 'set -eu -o pipefail\ncurl() { command curl --fail-with-body -w "\\n" "$@"; }\n'
    script = strict + "\n".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script], env=environment(API=base, **variables), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def mail(api: Api) -> Api:
    """The README's queue."""
    return Api(api.http, "mail")


def test_every_command_of_the_tour_works_and_does_what_it_says(mail: Api, broker: RunningBroker) -> None:
    printed = tour(broker.base, *code("Five minutes with curl", "bash"))
    assert '"status":"already_settled"' in printed
    assert '"state":"dead"' in printed
    assert '"fingerprint":"SmtpError: no mailbox #"' in printed
    assert '"replayed":1' in printed
    replayed, completed = mail.get("/jobs", queue="mail")["items"]
    assert (completed["state"], completed["result"]) == ("completed", {"message_id": "m-1"})
    assert (replayed["state"], replayed["payload"], replayed["replay_count"]) == ("ready", {"to": "grace"}, 1)
    assert mail.counts() == {"completed": 1, "ready": 1}


def test_every_command_about_policies_works_and_does_what_it_says(api: Api, broker: RunningBroker) -> None:
    first = code("Five minutes with curl", "bash")[0]
    printed = tour(broker.base, first, *code("Policies", "bash"))
    assert '"paused_reason":"the warehouse moves"' in printed
    assert '"code":"group_at_limit"' in printed
    assert '"pointer":"/payload/to"' in printed
    assert [job["state"] for job in api.get("/jobs", queue="video")["items"]] == ["blocked", "ready", "ready"]
    assert len(api.get("/jobs", queue="search")["items"]) == 1
    assert api.get("/jobs", queue="reports")["items"][0]["schedule"] == "nightly"
    api.delete("/job-types/email.send")


def test_every_command_about_keys_works_and_does_what_it_says(postgres: str, loop: Loop) -> None:
    """On a broker of its own: the first key shuts out everybody else."""
    dsn = create_database(postgres, loop, "readme_keys")
    with threaded_broker(QUICK, dsn) as broker:
        printed = tour(broker.base, *code("API keys", "bash"), DATABASE_URL=dsn)
        assert printed.count('"name":"mailer"') == 2
        assert broker.http.get("/stats").status_code == 401


def test_the_tour_needs_nothing_but_curl_and_python() -> None:
    commands = re.findall(
        r"(?:^|\$\(|\| )([a-z]\w*)\b(?!\()", "\n".join(code("Five minutes with curl", "bash")), re.MULTILINE
    )
    assert set(commands) <= {"curl", "echo", "field", "for", "print"}


def test_worker_completes_fails_and_drains(mail: Api, broker: RunningBroker) -> None:
    """tests/examples tests what it survives."""
    (script,) = code("A worker", "python")
    good, bad = mail.enqueue(payload={"to": "ada"}), mail.enqueue(payload={}, max_attempts=1)
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment(LONGSHORE_URL=broker.base), stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            wait_until(lambda: mail.job(bad["id"])["state"] == "dead")
            (worker_id,) = [known["worker_id"] for known in mail.get("/workers")["items"]]
            mail.post(f"/workers/{worker_id}/drain")
            _, errors = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0, errors
    assert mail.job(good["id"])["result"] == {"greeted": "ada"}
    assert mail.job(bad["id"])["error"]["error_type"] == "KeyError"


def test_worker_is_short() -> None:
    (script,) = code("A worker", "python")
    assert len([line for line in script.splitlines() if line]) <= 40


def test_the_settings_table_is_what_the_code_says() -> None:
    told = [line for line in section("Settings").splitlines() if line.startswith("| `")]
    assert told == rows(), "python -m tests.readme.settings_table prints the rows"


def test_the_map_names_only_what_exists() -> None:
    named = [name for name in re.findall(r"`([^`\s]+)`", section("The map of the code")) if "/" in name]
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_map_names_every_room() -> None:
    rooms = {f"app/{path.parent.name}/" for path in (ROOT / "app").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}`" not in section("The map of the code")} == set()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_make_targets_it_names_exist() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test", "chaos"} <= set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE)) <= set(targets)
