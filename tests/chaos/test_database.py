"""The Postgres of a run: the data that the checker reads survives kill -9."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.chaos import audit_log
from tests.chaos.database import Postgres

INSERT = """
INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
VALUES (256, gen_random_uuid(), 'ready', now(), 0, 5, 'test', '{}')
"""
CLAIM = "UPDATE jobs SET state = 'running', lease_token = gen_random_uuid(), deliveries = 1, attempt = 1"
COMPLETE = """
WITH taken AS (DELETE FROM jobs RETURNING *)
INSERT INTO finished_jobs (
    lane, id, state, finished_at, keep_until, archive, settled_as, attempt, crashes, deliveries, run_at,
    priority, max_attempts, replay_count, lease_token, job_type, payload
)
SELECT lane, id, 'completed', now(), now() + interval '1 day', false, 'complete', attempt, crashes, deliveries, run_at,
    priority, max_attempts, replay_count, lease_token, job_type, payload
FROM taken
"""


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    server = Postgres(tmp_path)
    server.start()
    try:
        server.prepare()
        yield server
    finally:
        server.stop()


async def deadlock(dsn: str) -> None:
    """Two sessions lock two rows in opposite order; Postgres terminates one of them."""
    sessions = [await asyncpg.connect(dsn) for _ in range(2)]
    for session, lane in zip(sessions, (1, 2), strict=True):
        await session.execute(f"BEGIN; SELECT FROM lane_locks WHERE lane = {lane} FOR UPDATE")
    waits = [
        session.execute(f"SELECT FROM lane_locks WHERE lane = {lane} FOR UPDATE")
        for session, lane in zip(sessions, (2, 1), strict=True)
    ]
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(end) for end in ends].count(asyncpg.DeadlockDetectedError) == 1
    for session in sessions:
        session.terminate()


def test_deadlock_count_and_audit_log_survive_a_crash(postgres: Postgres) -> None:
    postgres.execute("INSERT INTO lane_locks (lane) VALUES (1), (2)")
    asyncio.run(deadlock(postgres.dsn))
    for statement in (f"BEGIN; {INSERT}; ROLLBACK", INSERT, CLAIM, "UPDATE jobs SET progress = '{}'", COMPLETE):
        postgres.execute(statement)
    postgres.signal(signal.SIGKILL)
    postgres.restart()
    assert postgres.deadlocks() == 1
    rows = [(row.source, row.op, row.old_state, row.state) for row in audit_log.read(postgres)]
    assert rows[:2] == [("jobs", "INSERT", "", "ready"), ("jobs", "UPDATE", "ready", "running")]
    assert sorted(rows[2:]) == [("finished_jobs", "INSERT", "", "completed"), ("jobs", "DELETE", "", "running")]
