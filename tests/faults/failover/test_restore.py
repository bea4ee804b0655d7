"""Restores: a base backup with archived WAL, recovered to an earlier point; and a dump of a
database in use.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.broker import build_broker
from app.maintenance import restore as maintenance_restore
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop
from tests.faults.failover.load import ALL_JOBS, COMPLETED_JOBS, run_load
from tests.faults.failover.server import Server
from tests.polls import Background


@pytest.fixture
def server(template: Server) -> Iterator[Server]:
    """A server that archives its WAL."""
    server = template.copy("archived")
    server.account.make_folder(archive_of(server))
    server.start({"archive_mode": "on", "archive_command": f"cp %p {archive_of(server)}/%f"})
    yield server
    server.stop()


@pytest.fixture
def backup(server: Server) -> Path:
    folder = server.account.make_folder(server.account.folder / f"{server.name}-backup")
    server.account.run(
        "pg_basebackup", "-D", folder, "-h", server.sockets, "-U", "postgres", "-X", "none", "-c", "fast", "--no-sync"
    )
    return folder


def restore(server: Server, backup: Path, loop: Loop) -> Server:
    """Recovers the backup to the restore point `earlier`."""
    restored = Server(server.account, "restored", backup)
    restored.create_signal_file("recovery.signal")
    target = {"recovery_target_name": "earlier", "recovery_target_action": "promote"}
    restored.start({"restore_command": f"cp {archive_of(server)}/%f %p", **target})
    wait_until(lambda: not restored.open(loop).value("SELECT pg_is_in_recovery()"))
    return restored


def archive_of(server: Server) -> Path:
    return server.account.folder / f"{server.name}-archive"


def end_leases(dsn: str, loop: Loop) -> int:
    """Does what `python -m app restored` does."""
    broker_services = build_broker(TEST_SETTINGS, dsn)

    async def run() -> int:
        await broker_services.infra.db.open()
        try:
            await broker_services.infra.clock.refresh(broker_services.infra.db)
            return await maintenance_restore.end_leases(broker_services.infra, broker_services.lease_ender)
        finally:
            await broker_services.infra.db.close()

    return loop.run(run())


def test_restored_database_rejects_old_tokens_and_redelivers_jobs_settled_since(
    server: Server, backup: Path, loop: Loop
) -> None:
    with threaded_broker(TEST_SETTINGS, server.dsn) as broker:
        api = Api(broker.http, "orders")
        settled = api.enqueue(payload="settled before")["id"]
        api.complete(api.claim_one())
        api.enqueue_many(3)
        late, first, second = api.claim(max_jobs=3, key="k")["jobs"]
        database = server.open(loop)
        database.age(late["id"], 120)
        wait_until(lambda: api.job(late["id"])["state"] == "ready")
        database.value("SELECT pg_create_restore_point('earlier')")
        api.complete(first)
        lost = api.enqueue(key="lost")["id"]
        database.value("SELECT pg_switch_wal()")
    server.stop()
    restored = restore(server, backup, loop)
    try:
        assert end_leases(restored.dsn, loop) == 3
        with threaded_broker(TEST_SETTINGS, restored.dsn) as broker:
            api = Api(broker.http, "orders")
            assert api.job(settled)["state"] == "completed"
            assert [api.complete(job, status=409)["code"] for job in (late, first, second)] == ["lease_lost"] * 3
            assert api.http.get(f"/jobs/{lost}").status_code == 404
            assert api.claim(max_jobs=10, key="k")["jobs"] == []
            redelivered = api.claim(max_jobs=10)["jobs"]
            assert {job["id"] for job in redelivered} == {late["id"], first["id"], second["id"]}
            assert [job["attempt"] for job in redelivered if job["id"] != late["id"]] == [1, 1]
            assert api.enqueue(key="lost")["id"] not in {lost, settled} | {job["id"] for job in redelivered}
            assert all(api.complete(job)["status"] == "settled" for job in redelivered)
        assert end_leases(restored.dsn, loop) == 0
    finally:
        restored.stop()


def test_dump_taken_under_load_is_consistent(server: Server, loop: Loop, background: Background) -> None:
    dump = server.sockets / "dump"
    connection_options = ("-h", server.sockets, "-U", "postgres")
    with threaded_broker(TEST_SETTINGS, server.dsn) as broker, run_load(broker.base, background) as clients:
        clients.wait_for_more(100, 20)
        enqueued, settled = set(clients.enqueued.values()), set(clients.settled)
        server.account.run("pg_dump", "-Fc", "-f", dump, *connection_options, "postgres")
        clients.wait_for_more(50, 10)
    server.open(loop).execute("CREATE DATABASE copy TEMPLATE template0")
    server.account.run("pg_restore", "-d", "copy", *connection_options, "--exit-on-error", dump)
    copy = server.open(loop, "copy")
    assert enqueued <= {row["id"] for row in copy.rows(ALL_JOBS)}
    assert settled <= {row["id"] for row in copy.rows(COMPLETED_JOBS)}
    end_leases(copy.dsn, loop)
    with threaded_broker(TEST_SETTINGS, copy.dsn) as broker:
        api = Api(broker.http, "load")
        counts = copy.rows(
            "SELECT state, count(*) FROM jobs GROUP BY state "
            "UNION ALL SELECT state, count(*) FROM finished_jobs GROUP BY state"
        )
        assert api.counts() == {row["state"]: row["count"] for row in counts}
        assert api.enqueue(queue="new")["id"] not in enqueued
        assert api.claim_one(queues=["new"])["attempt"] == 1
