"""Which servers we work with: no standby, and no old primary that a newer one has replaced (R10, C15, C16)."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.db import migrations
from app.db.pool import Database
from app.errors import DatabaseUnavailable
from tests.api import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase
from tests.failover.server import PORT, Server
from tests.faults.conftest import StartServer, open_database

Eventually = Callable[[Callable[[], Any]], Any]

WRITE = "INSERT INTO leaders (chore, holder, held_until) VALUES ($1, gen_random_uuid(), now())"
WRITTEN = "SELECT array_agg(chore ORDER BY chore) FROM leaders"


class Rivals(NamedTuple):
    """An old primary that nobody has stopped, and the one that was promoted over it: copies of one cluster, on timelines 1 and 2."""

    old: Server
    new: Server


@pytest.fixture
def rivals(start: StartServer, loop: Loop) -> Rivals:
    old, new = start(), start(standby=True)
    new.promote(loop)
    return Rivals(old, new)


@pytest.fixture
def address(rivals: Rivals, tmp_path: Path) -> Iterator[Callable[[Server], str]]:
    """One address, as of a load balancer, that leads to either."""
    link = rivals.old.account.folder / "address"

    def lead_to(server: Server) -> str:
        link.unlink(missing_ok=True)
        link.symlink_to(server.sockets)
        return f"postgresql://postgres@/postgres?host={link}&port={PORT}"

    yield lead_to
    link.unlink()


def both(one: Server, other: Server) -> str:
    return f"postgresql://postgres@/postgres?host={one.sockets},{other.sockets}&port={PORT},{PORT}&target_session_attrs=primary"


def test_standby_is_refused_and_reported_by_readyz(start: StartServer) -> None:
    with threaded_broker(TEST_SETTINGS, start(standby=True).dsn) as broker:
        api = Api(broker.http, "q")
        problem = api.enqueue(status=503)
        assert (problem["outcome"], problem["detail"]) == ("not_done", "the server is a standby: it takes no writes")
        checks = {check["name"]: check for check in api.get("/readyz", status=503)["checks"]}
        assert "standby" in checks["database"]["detail"]
        assert api.get("/livez")["status"] == "alive"


def test_old_primary_is_refused_by_a_process_that_has_seen_a_newer_timeline(
    rivals: Rivals, address: Callable[[Server], str], loop: Loop
) -> None:
    with open_database(address(rivals.new), loop) as db:
        loop.run(db.rows(WRITE, "on the new one"))
        address(rivals.old)
        db.terminate()
        for _ in range(3):
            with pytest.raises(
                DatabaseUnavailable, match="old primary: it writes timeline 1, another has reached 2"
            ) as refusal:
                loop.run(db.rows(WRITE, "on the old one"))
        assert refusal.value.outcome == "not_done"
        address(rivals.new)
        assert loop.run(db.value("SELECT pg_is_in_recovery()")) is False
    assert rivals.old.open(loop).value(WRITTEN) is None


def test_old_primary_is_accepted_by_a_process_that_has_seen_no_newer_timeline(
    rivals: Rivals, address: Callable[[Server], str], loop: Loop
) -> None:
    """The control: nothing else keeps it away."""
    with open_database(address(rivals.old), loop) as db:
        loop.run(db.rows(WRITE, "on the old one"))
    assert rivals.old.open(loop).value(WRITTEN) == ["on the old one"]


def test_newest_primary_of_several_hosts_is_used_in_any_order(
    rivals: Rivals, loop: Loop
) -> None:
    with open_database(both(rivals.old, rivals.new), loop) as db:
        loop.run(db.rows(WRITE, "x"))
    assert (rivals.old.open(loop).value(WRITTEN), rivals.new.open(loop).value(WRITTEN)) == (None, ["x"])


def test_unreachable_hosts_of_several_are_skipped(start: StartServer, loop: Loop, eventually: Eventually) -> None:
    away, there = start(), start()
    away.stop()
    with open_database(both(away, there), loop) as db:
        loop.run(db.rows(WRITE, "x"))
        there.stop()
        with pytest.raises(DatabaseUnavailable):
            loop.run(db.rows(WRITE, "y"))
        away.start()
        eventually(lambda: _timeline(db, loop) == "00000001")


def test_promotion_of_another_host_terminates_connections_to_the_old_primary(
    start: StartServer, loop: Loop, eventually: Eventually
) -> None:
    """It does not know that it was replaced: its standby's host tells."""
    old, new = start(), start(standby=True)
    with open_database(both(old, new), loop) as db:
        loop.run(db.rows(WRITE, "before"))
        new.promote(loop)
        eventually(lambda: _timeline(db, loop) == "00000002")
        loop.run(db.rows(WRITE, "after"))
    assert (old.open(loop).value(WRITTEN), new.open(loop).value(WRITTEN)) == (["before"], ["after"])


def _timeline(db: Database, loop: Loop) -> object:
    with suppress(DatabaseUnavailable):
        return loop.run(db.value("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"))
    return None


def test_migrations_run_on_the_primary_of_several_hosts(start: StartServer, loop: Loop) -> None:
    standby, primary = start(standby=True), start()
    there = primary.open(loop)
    there.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    migrations.upgrade(both(standby, primary))
    assert there.value("SELECT version_num FROM alembic_version") == migrations.head()


def test_read_only_session_is_not_reused(database: TestDatabase, loop: Loop) -> None:
    with open_database(database.dsn, loop) as db:
        read_only = loop.run(_made_read_only(db))
        with pytest.raises(DatabaseUnavailable) as refusal:
            loop.run(db.rows(WRITE, "refused"))
        assert refusal.value.outcome == "not_done"
        assert loop.run(db.value("SELECT pg_backend_pid()")) != read_only
        loop.run(db.rows("DELETE FROM leaders WHERE chore = 'refused'"))


async def _made_read_only(db: Database) -> object:
    await db.rows("SET default_transaction_read_only = on")
    return await db.value("SELECT pg_backend_pid()")
