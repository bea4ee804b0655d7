"""The broker needs nothing to write to and no privilege (E19). Where the kernel does not let us try, the end of the run says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.db.migrations import ROOT
from tests.api import Api
from tests.broker import broker_process
from tests.change.sealed import WITHIN
from tests.database import TestDatabase
from tests.db.proxy import proxy_to

NONE = "0" * 16
WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1], 'sealed.txt').write_text('x')"


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_broker_serves_from_a_read_only_file_system_without_privileges(db: TestDatabase, queue: str) -> None:
    """By a socket that is ours: without capabilities nobody reaches into the folder of the user that Postgres runs as."""
    with proxy_to(db.dsn) as proxy, broker_process(proxy.dsn, *WITHIN, log_level="error") as (broker, process):
        api = Api(broker.http, queue)
        assert api.get("/readyz")["ready"]
        job = api.enqueue(payload={"n": 1})
        assert api.complete(api.claim_one())["state"] == "completed"
        assert api.job(job["id"])["state"] == "completed"
        told = status_of(process.pid)
        process.terminate()
        assert process.wait(30) == 0
    assert [told[name] for name in ("NoNewPrivs", "CapEff", "CapPrm", "CapBnd")] == ["1", NONE, NONE, NONE]


@pytest.mark.parametrize("folder", [str(ROOT), "/tmp", "/var/tmp"])
def test_nothing_can_be_written_there(folder: str) -> None:
    """The control: the seal holds."""
    wrote = subprocess.run([*WITHIN, sys.executable, "-c", WRITES, folder], capture_output=True, text=True, check=False)
    assert "Read-only file system" in wrote.stderr
