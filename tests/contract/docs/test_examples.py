"""Executes every bash and python example of README.md and of the pages under docs."""

import re
import subprocess
import sys

import pytest

from tests.api_client import Api
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.contract.cli.command import environment
from tests.contract.docs.pages import PAGES, QUICKSTART, README, code, run_bash, set_up_terminal
from tests.database import Loop, create_database

EXECUTED_HERE = {
    README,
    QUICKSTART,
    "docs/guides/limits.md",
    "docs/guides/unique-keys.md",
    "docs/guides/deadlines.md",
    "docs/guides/dead-letters.md",
    "docs/guides/dependencies.md",
    "docs/guides/schedules.md",
    "docs/guides/job-types.md",
    "docs/guides/api-keys.md",
}
EXECUTED_ELSEWHERE = {"docs/operations/backup.md"}  # tests/contract/cli/test_backup.py
# Executed by tests/sql/enqueue/test_guide.py and tests/upgrades/rollout/test_documented_roles.py;
# compared with the settings of sessions by tests/unit/test_durability.py.
WITH_SQL = {"docs/guides/transactional-enqueue.md", "docs/operations/deploying.md", "docs/operations/postgres.md"}


@pytest.fixture
def mail(api: Api) -> Api:
    """The queue of the README."""
    return Api(api.http, "mail")


def run_guide(page: str, broker: RunningBroker) -> str:
    return run_bash(broker.base, set_up_terminal(), *code(f"docs/guides/{page}.md", "bash"))


def test_every_page_with_examples_is_executed() -> None:
    with_examples = {page for page in PAGES if code(page, "bash") or code(page, "python")}
    assert with_examples == EXECUTED_HERE | EXECUTED_ELSEWHERE
    assert {page for page in PAGES if code(page, "sql")} == WITH_SQL


def test_readme_first_job_is_enqueued(mail: Api, broker: RunningBroker) -> None:
    printed = run_bash(broker.base, *code(README, "bash"))
    assert printed.count('"payload":{"to": "ada"}') == 2
    assert mail.counts() == {"ready": 1}


@pytest.mark.slow
def test_quickstart_commands_have_the_documented_results(mail: Api, broker: RunningBroker) -> None:
    """A newcomer reads the README first, so its job is still waiting."""
    run_bash(broker.base, *code(README, "bash"))
    printed = run_bash(broker.base, *code(QUICKSTART, "bash"))
    assert '"status":"already_settled"' in printed
    assert '"state":"dead"' in printed
    assert '"fingerprint":"SmtpError: no mailbox #"' in printed
    assert '"replayed":1' in printed
    replayed, completed = mail.get("/jobs", queue="letters")["items"]
    assert (completed["state"], completed["result"]) == ("completed", {"message_id": "m-1"})
    assert (replayed["state"], replayed["payload"], replayed["replay_count"]) == ("completed", {"to": "grace"}, 1)
    assert mail.counts() == {"ready": 1}


def test_quickstart_needs_nothing_but_curl_and_python() -> None:
    commands = re.findall(r"(?:^|\$\(|\| )([a-z]\w*)\b(?!\()", "\n".join(code(QUICKSTART, "bash")), re.MULTILINE)
    assert set(commands) <= {"curl", "echo", "field", "for", "print"}


@pytest.mark.slow
def test_limits_guide_orders_and_explains_jobs_of_a_group(broker: RunningBroker, api: Api) -> None:
    printed = run_guide("limits", broker)
    assert '"paused_reason":"the warehouse moves"' in printed
    assert '"code":"group_at_limit"' in printed
    assert len(api.get("/jobs", queue="orders")["items"]) == 2


def test_job_types_guide_rejects_an_invalid_payload(broker: RunningBroker, api: Api) -> None:
    assert '"pointer":"/payload/to"' in run_guide("job-types", broker)
    api.delete("/job-types/email.send")


def test_unique_keys_guide_leaves_one_job(broker: RunningBroker, api: Api) -> None:
    run_guide("unique-keys", broker)
    assert len(api.get("/jobs", queue="search")["items"]) == 1


def test_dead_letters_guide_replays_both_jobs(broker: RunningBroker, api: Api) -> None:
    printed = run_guide("dead-letters", broker)
    assert '"fingerprint":"MissingField: order # has no currency","count":2' in printed
    assert '"matched":2,"replayed":0,"remaining":2' in printed
    assert printed.count('"replayed":1,') == 2
    assert '"matched":0,"purged":0' in printed
    jobs = api.get("/jobs", queue="invoices")["items"]
    assert [(job["replay_count"], job["payload"].get("currency")) for job in jobs] == [(1, "EUR"), (1, None)]


def test_deadlines_guide_enqueues_a_job_with_deadlines(broker: RunningBroker, api: Api) -> None:
    run_guide("deadlines", broker)
    (job,) = api.get("/jobs", queue="alerts")["items"]
    assert job["state"] == "ready"


def test_dependencies_guide_blocks_the_child(broker: RunningBroker, api: Api) -> None:
    run_guide("dependencies", broker)
    assert [job["state"] for job in api.get("/jobs", queue="video")["items"]] == ["blocked", "ready", "ready"]


def test_schedules_guide_runs_the_schedule(broker: RunningBroker, api: Api) -> None:
    run_guide("schedules", broker)
    assert api.get("/jobs", queue="reports")["items"][0]["schedule"] == "nightly"


@pytest.mark.slow
def test_api_keys_guide_creates_keys_and_ends_anonymous_access(postgres: str, loop: Loop) -> None:
    """Uses a broker of its own, because the first key locks out every other caller."""
    dsn = create_database(postgres, loop, "docs_keys")
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        printed = run_bash(broker.base, *code("docs/guides/api-keys.md", "bash"), DATABASE_URL=dsn)
        assert printed.count('"name":"mailer"') == 2
        assert broker.http.get("/stats").status_code == 401


@pytest.mark.slow
def test_worker_completes_fails_and_drains(mail: Api, broker: RunningBroker) -> None:
    """tests/contract/examples tests which faults the worker survives."""
    (script,) = code(README, "python")
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
    (script,) = code(README, "python")
    assert len([line for line in script.splitlines() if line]) <= 40
