"""The Postgres of a run: the data that the checker reads survives kill -9."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.chaos import audit_log
from tests.chaos.audit_order import Snapshot
from tests.chaos.database import Postgres

INSERT = """
INSERT INTO jobs (lane, id, state, run_at, priority, max_attempts, job_type, payload)
VALUES (259, gen_random_uuid(), 'ready', now(), 0, 5, 'test', '{"key": "k"}')
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


async def claim_beside_an_open_insert(dsn: str) -> None:
    """Claims the only committed job while another session has stored one and not committed it."""
    storing, claiming = [await asyncpg.connect(dsn) for _ in range(2)]
    await claiming.execute(INSERT)
    await storing.execute(f"BEGIN; {INSERT}")
    await claiming.execute(CLAIM)
    await storing.execute("COMMIT")
    for session in (storing, claiming):
        session.terminate()


def test_record_of_a_claim_shows_which_jobs_its_statement_saw(postgres: Postgres) -> None:
    asyncio.run(claim_beside_an_open_insert(postgres.dsn))
    seen, unseen, claimed = audit_log.read(postgres)
    snapshot = Snapshot(claimed.snapshot)
    assert (seen.id, claimed.state, unseen.state) == (claimed.id, "running", "ready")
    assert [snapshot.sees(row.xid) for row in (seen, unseen, claimed)] == [True, False, False]
    assert (claimed.queue, claimed.lane, seen.key) == (1, 3, "k")
    assert seen.transaction_at <= seen.at <= claimed.transaction_at <= claimed.at
