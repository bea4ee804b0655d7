"""A thousand parked polls hold no database connection, and a poll over the limit returns at once.

See docs/reliability/faults.md#a20.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import broker_process
from tests.database import Loop, TestDatabase, create_database
from tests.polls import RawClaim, parked_polls

pytestmark = pytest.mark.slow

MAX_PARKED_POLLS = 1000
FIRST_POLLS = 100
POLL = {"queues": ["always-empty"], "wait_seconds": 60}
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longshore' AND datname = current_database()"


@pytest.fixture(scope="module")
def database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "many_polls"), loop)
    yield database
    database.close()


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_a_thousand_parked_polls_hold_no_database_connection_and_one_more_returns_at_once(
    database: TestDatabase, eventually: Callable[..., Any]
) -> None:
    with broker_process(
        database.dsn, max_parked_polls=str(MAX_PARKED_POLLS), max_wait_seconds="60", pool_size="4", log_level="error"
    ) as (
        broker,
        process,
    ):
        polls = [RawClaim(broker.base, POLL) for _ in range(FIRST_POLLS)]
        eventually(lambda: parked_polls(broker.http) == FIRST_POLLS)
        before = memory_kib(process.pid)
        polls += [RawClaim(broker.base, POLL) for _ in range(MAX_PARKED_POLLS - FIRST_POLLS)]
        eventually(lambda: parked_polls(broker.http) == MAX_PARKED_POLLS)
        assert database.value(SESSIONS) <= 4
        assert (memory_kib(process.pid) - before) / (MAX_PARKED_POLLS - FIRST_POLLS) < 64, (
            "KiB of memory per parked poll"
        )
        rejected = broker.http.post("/claim", json=POLL).json()
        assert (rejected["jobs"], rejected["poll_after_ms"] > 0) == ([], True)
        for poll in polls:
            poll.cut()
        eventually(lambda: parked_polls(broker.http) == 0)
