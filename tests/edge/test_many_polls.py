"""Thousands of parked polls: no connection to the database is held for them, and one too many is sent away politely (A20)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import broker_process
from tests.database import Loop, TestDatabase, create_database
from tests.polls import RawClaim, parked

MOST = 1000
FEW = 100
POLL = {"queues": ["nothing-comes"], "wait_seconds": 60}
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore' AND datname = current_database()"


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "many_polls"), loop)
    yield database
    database.close()


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_thousands_wait_without_a_database_connection_and_one_more_is_sent_away(
    database: TestDatabase, eventually: Callable[..., Any]
) -> None:
    with broker_process(
        database.dsn, max_parked_polls=str(MOST), max_wait_seconds="60", pool_size="4", log_level="error"
    ) as (
        broker,
        process,
    ):
        polls = [RawClaim(broker.base, POLL) for _ in range(FEW)]
        eventually(lambda: parked(broker.http) == FEW)
        before = memory_kib(process.pid)
        polls += [RawClaim(broker.base, POLL) for _ in range(MOST - FEW)]
        eventually(lambda: parked(broker.http) == MOST)
        assert database.value(SESSIONS) <= 4
        assert (memory_kib(process.pid) - before) / (MOST - FEW) < 64, "KiB of memory per parked poll"
        refused = broker.http.post("/claim", json=POLL).json()
        assert (refused["jobs"], refused["poll_after_ms"] > 0) == ([], True)
        for poll in polls:
            poll.cut()
        eventually(lambda: parked(broker.http) == 0)
