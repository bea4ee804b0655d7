"""The broker needs no writable folder and no privilege (docs/reliability/faults.md#e19).

Where the kernel does not allow the test, the end of the test run says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.db.migrations import ROOT
from tests.api_client import Api
from tests.broker import broker_process
from tests.database import TestDatabase
from tests.faults.db.proxy import proxy_to
from tests.upgrades.rollout.sandbox import SANDBOX

NO_CAPABILITIES = "0" * 16
WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1], 'written.txt').write_text('x')"


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_broker_serves_on_a_read_only_file_system_without_privileges(db: TestDatabase, queue: str) -> None:
    """Connects through a socket of this process: without capabilities the broker cannot open the
    folder of the Postgres user."""
    with proxy_to(db.dsn) as proxy, broker_process(proxy.dsn, *SANDBOX, log_level="error") as (broker, process):
        api = Api(broker.http, queue)
        assert api.get("/readyz")["ready"]
        job = api.enqueue(payload={"n": 1})
        assert api.complete(api.claim_one())["state"] == "completed"
        assert api.job(job["id"])["state"] == "completed"
        status = status_of(process.pid)
        process.terminate()
        assert process.wait(30) == 0
    assert [status[name] for name in ("NoNewPrivs", "CapEff", "CapPrm", "CapBnd")] == [
        "1",
        NO_CAPABILITIES,
        NO_CAPABILITIES,
        NO_CAPABILITIES,
    ]


@pytest.mark.parametrize("folder", [str(ROOT), "/tmp", "/var/tmp"])
def test_sandbox_rejects_writes(folder: str) -> None:
    """Control: the sandbox is effective."""
    result = subprocess.run(
        [*SANDBOX, sys.executable, "-c", WRITES, folder], capture_output=True, text=True, check=False
    )
    assert "Read-only file system" in result.stderr
