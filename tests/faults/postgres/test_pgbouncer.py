"""PgBouncer in transaction mode: statements go through the pooler, LISTEN and migrations connect
directly, and no setting stays in a shared session. See docs/reliability/faults.md#c32.
"""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import asyncpg
import pytest

from app.db import session_settings
from app.settings import Settings
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase
from tests.faults.failover.server import PORT, Server
from tests.faults.postgres.conftest import PGBOUNCER, StartServer, settings_with
from tests.polls import Background, metric_value, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]

# Fewer sessions than a broker has connections, so that connections share them all the time.
CONFIG = """
[databases]
postgres = host={sockets} port={port} user=postgres

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 6
"""


@pytest.fixture
def server(start: StartServer) -> Server:
    return start(fsync="on")


@pytest.fixture
def direct(server: Server, loop: Loop) -> TestDatabase:
    return server.open(loop)


@pytest.fixture
def pooled(server: Server, loop: Loop, eventually: Eventually) -> Iterator[str]:
    assert PGBOUNCER is not None
    folder = server.account.make_folder(server.account.folder / f"{server.name}-pooler")
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(sockets=server.sockets, folder=folder, port=PORT))
    server.account.take_ownership(config)
    process = server.account.start([PGBOUNCER, "--quiet", config], subprocess.DEVNULL)
    dsn = f"postgresql://postgres@/postgres?host={folder}&port={PORT}"
    try:
        eventually(lambda: is_up(dsn, loop))
        yield dsn
    finally:
        process.terminate()
        process.wait(30)


def is_up(dsn: str, loop: Loop) -> bool:
    try:
        return bool(show(dsn, loop, "server_version"))
    except OSError:
        return False


def show(dsn: str, loop: Loop, name: str) -> str:
    async def query() -> str:
        connection = await asyncpg.connect(dsn, statement_cache_size=0)
        try:
            return str(await connection.fetchval("SELECT current_setting($1)", name))
        finally:
            await connection.close()

    return loop.run(query())


def settings(server: Server) -> Settings:
    listen = Settings.model_validate({"listen_url": server.dsn}).listen_url
    return settings_with(statement_cache=False, listen_url=listen, poll_seconds=3600.0)


@pytest.fixture
def role_settings(direct: TestDatabase) -> None:
    """The role settings of docs/operations/postgres.md, set before the pooler opens a session."""
    for name, value in session_settings.NEEDED.items():
        direct.execute(f"ALTER ROLE postgres IN DATABASE postgres SET {name} = '{value}'")


def test_brokers_behind_a_transaction_pooler_do_all_work_once(
    server: Server, role_settings: None, pooled: str, background: Background, eventually: Eventually
) -> None:
    with (
        threaded_broker(settings(server), pooled) as broker,
        threaded_broker(settings(server), pooled) as second_broker,
    ):
        here, there = Api(broker.http, "q"), Api(second_broker.http, "q")
        poll = background.claim(there)
        eventually(lambda: parked_polls(there.http) == 1)
        first = here.enqueue()
        assert poll.result(20)["jobs"][0]["id"] == first["id"]
        there.complete(poll.result()["jobs"][0])
        ids = here.enqueue_many(120)
        done = background.together(*[partial(work, api, f"{n}") for n, api in enumerate((here, there) * 4)])
        assert sorted(job for jobs in done for job in jobs) == sorted(ids)
        assert here.counts() == {"completed": 121}
        assert "the settings keep acknowledged writes" in readiness(here)
        assert metric_value(here.http, "notify_failures_total") == 0


def work(api: Api, worker: str) -> list[str]:
    """Claims with keys, and therefore in transactions, and settles, until no job is left."""
    claimed: list[str] = []
    while jobs := api.claim(max_jobs=5, key=f"{worker}-{len(claimed)}")["jobs"]:
        claimed += [job["id"] for job in jobs]
        api.settle(*[{"job_id": job["id"], "lease_token": job["lease_token"], "outcome": "complete"} for job in jobs])
    return claimed


def readiness(api: Api) -> str:
    return next(str(check["detail"]) for check in api.get("/readyz")["checks"] if check["name"] == "durability")


def test_pooled_sessions_stay_unchanged_and_missing_role_settings_are_reported(
    server: Server, pooled: str, loop: Loop
) -> None:
    with threaded_broker(settings(server), pooled) as broker:
        api = Api(broker.http, "q")
        api.enqueue_many(10)
        assert len(api.claim(max_jobs=10)["jobs"]) == 10
        assert "set them with ALTER ROLE: enable_seqscan=off" in readiness(api)
        # The driver itself may leave jit off when it looks up a type. A role that is
        # set as docs/operations/postgres.md says has it off anyway.
        names = sorted(session_settings.NEEDED.keys() - {"jit"})
        assert [show(pooled, loop, name) for name in names] == [show(server.dsn, loop, name) for name in names]
