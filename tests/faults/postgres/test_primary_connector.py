"""Which servers the broker uses: no standby, and no superseded primary. See
docs/reliability/rules.md#r10, docs/reliability/faults.md#c15 and #c16.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.db import migrations
from app.db.pool import Database
from app.errors import DatabaseUnavailable
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase
from tests.faults.failover.server import PORT, Server
from tests.faults.postgres.conftest import StartServer, open_database

Eventually = Callable[[Callable[[], Any]], Any]

WRITE = "INSERT INTO leaders (service, holder, held_until) VALUES ($1, gen_random_uuid(), now())"
WRITTEN = "SELECT array_agg(service ORDER BY service) FROM leaders"


class TwoPrimaries(NamedTuple):
    """A superseded primary that still runs, and the server that replaced it: copies of one cluster,
    on timelines 1 and 2.
    """

    old: Server
    new: Server


@pytest.fixture
def primaries(start: StartServer, loop: Loop) -> TwoPrimaries:
    old, new = start(), start(standby=True)
    new.promote(loop)
    return TwoPrimaries(old, new)


@pytest.fixture
def address(primaries: TwoPrimaries, tmp_path: Path) -> Iterator[Callable[[Server], str]]:
    """One address, like that of a load balancer, that leads to either server."""
    link = primaries.old.account.folder / "address"

    def point_to(server: Server) -> str:
        link.unlink(missing_ok=True)
        link.symlink_to(server.sockets)
        return f"postgresql://postgres@/postgres?host={link}&port={PORT}"

    yield point_to
    link.unlink()


def dsn_of(first: Server, second: Server) -> str:
    hosts = f"host={first.sockets},{second.sockets}&port={PORT},{PORT}"
    return f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=primary"


def test_standby_is_refused_and_reported_by_readyz(start: StartServer) -> None:
    with threaded_broker(TEST_SETTINGS, start(standby=True).dsn) as broker:
        api = Api(broker.http, "q")
        problem = api.enqueue(status=503)
        assert (problem["outcome"], problem["detail"]) == ("not_done", "the server is a standby: it accepts no writes")
        checks = {check["name"]: check for check in api.get("/readyz", status=503)["checks"]}
        assert "standby" in checks["database"]["detail"]
        assert api.get("/livez")["status"] == "alive"


def test_superseded_primary_is_refused_by_a_process_that_has_seen_a_newer_timeline(
    primaries: TwoPrimaries, address: Callable[[Server], str], loop: Loop
) -> None:
    with open_database(address(primaries.new), loop) as db:
        loop.run(db.rows(WRITE, "on the new one"))
        address(primaries.old)
        db.terminate()
        for _ in range(3):
            with pytest.raises(
                DatabaseUnavailable, match="superseded primary: its timeline is 1, another server has reached 2"
            ) as error:
                loop.run(db.rows(WRITE, "on the old one"))
        assert error.value.outcome == "not_done"
        address(primaries.new)
        assert loop.run(db.value("SELECT pg_is_in_recovery()")) is False
    assert primaries.old.open(loop).value(WRITTEN) is None


def test_superseded_primary_is_accepted_by_a_process_that_has_seen_no_newer_timeline(
    primaries: TwoPrimaries, address: Callable[[Server], str], loop: Loop
) -> None:
    """The control: nothing else refuses it."""
    with open_database(address(primaries.old), loop) as db:
        loop.run(db.rows(WRITE, "on the old one"))
    assert primaries.old.open(loop).value(WRITTEN) == ["on the old one"]


def test_newest_primary_of_several_hosts_is_used_in_any_order(primaries: TwoPrimaries, loop: Loop) -> None:
    with open_database(dsn_of(primaries.old, primaries.new), loop) as db:
        loop.run(db.rows(WRITE, "x"))
    assert (primaries.old.open(loop).value(WRITTEN), primaries.new.open(loop).value(WRITTEN)) == (None, ["x"])


def test_unreachable_hosts_of_several_are_skipped(start: StartServer, loop: Loop, eventually: Eventually) -> None:
    stopped, running = start(), start()
    stopped.stop()
    with open_database(dsn_of(stopped, running), loop) as db:
        loop.run(db.rows(WRITE, "x"))
        running.stop()
        with pytest.raises(DatabaseUnavailable):
            loop.run(db.rows(WRITE, "y"))
        stopped.start()
        eventually(lambda: _timeline(db, loop) == "00000001")


def test_promotion_of_another_host_terminates_connections_to_the_superseded_primary(
    start: StartServer, loop: Loop, eventually: Eventually
) -> None:
    """The superseded primary does not know that it was replaced.

    The other host reports the new timeline.
    """
    old, new = start(), start(standby=True)
    with open_database(dsn_of(old, new), loop) as db:
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
    database = primary.open(loop)
    database.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    migrations.upgrade(dsn_of(standby, primary))
    assert database.value("SELECT version_num FROM alembic_version") == migrations.head()


def test_read_only_session_is_not_reused(database: TestDatabase, loop: Loop) -> None:
    with open_database(database.dsn, loop) as db:
        read_only = loop.run(_make_read_only(db))
        with pytest.raises(DatabaseUnavailable) as error:
            loop.run(db.rows(WRITE, "refused"))
        assert error.value.outcome == "not_done"
        assert loop.run(db.value("SELECT pg_backend_pid()")) != read_only
        loop.run(db.rows("DELETE FROM leaders WHERE service = 'refused'"))


async def _make_read_only(db: Database) -> object:
    await db.rows("SET default_transaction_read_only = on")
    return await db.value("SELECT pg_backend_pid()")
