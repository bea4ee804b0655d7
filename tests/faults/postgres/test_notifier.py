"""The LISTEN/NOTIFY connection fails silently, or NOTIFY itself fails: no job depends on wake-ups.
See docs/reliability/rules.md#r13 and #r14, docs/reliability/faults.md#c27 and #c28."""

from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from app.settings import Settings
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase, create_database
from tests.faults.db.proxy import Proxy, proxy_to
from tests.faults.postgres.conftest import StartServer, settings_with
from tests.polls import Background, metric_value, parked_polls

Eventually = Callable[[Callable[[], Any]], Any]

FILL = """
DO $$
BEGIN
    FOR number IN 1..100 LOOP
        PERFORM pg_notify('others', number || repeat('x', 7900));
    END LOOP;
END
$$
"""


@pytest.fixture(scope="module")
def shared_database(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "wake_ups"), loop)
    yield database
    database.close()


@pytest.fixture
def listen_proxy(shared_database: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(shared_database.dsn) as proxy:
        yield proxy


def test_notifier_detects_a_black_hole_and_reconnects(
    shared_database: TestDatabase, listen_proxy: Proxy, background: Background, eventually: Eventually, queue: str
) -> None:
    """This broker does not poll: it finds the job by a wake-up, or by the check of every queue
    after it reconnected.
    """
    listening_through_proxy = settings_with(
        listen_url=Settings.model_validate({"listen_url": listen_proxy.dsn}).listen_url, poll_seconds=3600.0
    )
    with (
        threaded_broker(listening_through_proxy, shared_database.dsn) as first,
        threaded_broker(settings_with(), shared_database.dsn) as second,
    ):
        here, elsewhere = Api(first.http, queue), Api(second.http, queue)
        poll = background.claim(here)
        eventually(lambda: parked_polls(here.http) == 1)
        listen_proxy.swallow("requests", "replies")
        missed = elsewhere.enqueue()
        eventually(lambda: metric_value(here.http, "notify_failures_total") > 0)
        listen_proxy.swallow()
        listen_proxy.cut()
        assert poll.result(20)["jobs"][0]["id"] == missed["id"]


def test_jobs_are_enqueued_and_claimed_while_the_notify_queue_is_full(
    start: StartServer, loop: Loop, background: Background, eventually: Eventually
) -> None:
    """A session that listens and never ends its transaction keeps every later notification in the
    queue.
    """
    server = start(max_notify_queue_pages="64")
    idle_listener = loop.run(asyncpg.connect(server.dsn))
    loop.run(idle_listener.execute("LISTEN others"))
    loop.run(idle_listener.execute("BEGIN"))
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        fill_notify_queue(server.open(loop))
    with threaded_broker(settings_with(), server.dsn) as first, threaded_broker(settings_with(), server.dsn) as second:
        poll = background.claim(Api(second.http, "q"))
        eventually(lambda: parked_polls(second.http) == 1)
        job = Api(first.http, "q").enqueue()
        assert poll.result(20)["jobs"][0]["id"] == job["id"]
        eventually(lambda: metric_value(first.http, "notify_failures_total") > 0)
    loop.run(idle_listener.close())


def fill_notify_queue(database: TestDatabase) -> None:
    for _ in range(20):
        database.execute(FILL)
