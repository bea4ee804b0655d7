"""The connection for wake-ups fails without a word, or NOTIFY itself does: nothing depends on them (R13, R14, C27, C28)."""

from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from app.settings import Settings
from tests.api import Api
from tests.broker import threaded_broker
from tests.database import Loop, TestDatabase, create_database
from tests.db.proxy import Proxy, proxy_to
from tests.faults.conftest import StartServer, settings_with
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
def common(postgres: str, loop: Loop) -> Iterator[TestDatabase]:
    database = TestDatabase(create_database(postgres, loop, "wake_ups"), loop)
    yield database
    database.close()


@pytest.fixture
def way_to_hear(common: TestDatabase) -> Iterator[Proxy]:
    with proxy_to(common.dsn) as proxy:
        yield proxy


def test_notifier_detects_a_black_hole_and_reconnects(
    common: TestDatabase, way_to_hear: Proxy, background: Background, eventually: Eventually, queue: str
) -> None:
    """It does not poll: what it gets it was told, or found when it looked everywhere after the loss."""
    deaf = settings_with(
        listen_url=Settings.model_validate({"listen_url": way_to_hear.dsn}).listen_url, poll_seconds=3600.0
    )
    with threaded_broker(deaf, common.dsn) as one, threaded_broker(settings_with(), common.dsn) as other:
        here, elsewhere = Api(one.http, queue), Api(other.http, queue)
        poll = background.claim(here)
        eventually(lambda: parked_polls(here.http) == 1)
        way_to_hear.swallow("requests", "replies")
        missed = elsewhere.enqueue()
        eventually(lambda: metric_value(here.http, "notify_failures_total") > 0)
        way_to_hear.swallow()
        way_to_hear.cut()
        assert poll.result(20)["jobs"][0]["id"] == missed["id"]


def test_jobs_are_enqueued_and_claimed_while_the_notify_queue_is_full(
    start: StartServer, loop: Loop, background: Background, eventually: Eventually
) -> None:
    """A session that listens and never ends its transaction keeps everything that was told since."""
    server = start(max_notify_queue_pages="64")
    sleeper = loop.run(asyncpg.connect(server.dsn))
    loop.run(sleeper.execute("LISTEN others"))
    loop.run(sleeper.execute("BEGIN"))
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        fill(server.open(loop))
    with threaded_broker(settings_with(), server.dsn) as one, threaded_broker(settings_with(), server.dsn) as other:
        poll = background.claim(Api(other.http, "q"))
        eventually(lambda: parked_polls(other.http) == 1)
        job = Api(one.http, "q").enqueue()
        assert poll.result(20)["jobs"][0]["id"] == job["id"]
        eventually(lambda: metric_value(one.http, "notify_failures_total") > 0)
    loop.run(sleeper.close())


def fill(database: TestDatabase) -> None:
    for _ in range(20):
        database.execute(FILL)
