"""The poll history: which queues and job types were polled lately, for `explain`."""

import asyncio

from app.broker import Broker
from app.workers import store
from app.workers.store import PolledType
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.database import Loop, TestDatabase


def recorded_types(api: Api, job: Json, db: TestDatabase) -> list[str]:
    api.get(f"/jobs/{job['id']}/explain")  # writes the history first
    return [row["job_type"] for row in db.rows("SELECT job_type FROM poll_history ORDER BY job_type")]


def test_polled_types_beyond_the_limit_of_a_key_are_served_but_not_recorded(
    isolated_db: TestDatabase, queue: str
) -> None:
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_polled_types_per_key": 3}), isolated_db.dsn) as broker:
        api = Api(broker.http, queue)
        job = api.enqueue(job_type="d")
        for job_types in (["a", "b"], ["c", "d"], ["a", "e"]):
            claimed = api.claim(job_types=job_types)["jobs"]
            assert [found["id"] for found in claimed] == ([job["id"]] if "d" in job_types else [])
        assert recorded_types(api, job, isolated_db) == ["a", "b", "c"]
        assert "longshore_polls_not_recorded_total 2.0" in api.http.get("/metrics").text
        isolated_db.execute("UPDATE poll_history SET last_polled_at = last_polled_at - interval '1 hour'")
        api.claim(job_types=["a", "f"])
        assert recorded_types(api, job, isolated_db) == ["a", "b", "c"]
        assert isolated_db.value("SELECT max(last_polled_at) > now() - interval '1 minute' FROM poll_history")


def test_write_of_the_poll_history_waits_for_a_running_write(
    isolated_services: Broker, isolated_db: TestDatabase, loop: Loop
) -> None:
    """The background service may have taken the polls that `explain` is about to read."""
    finished: list[str] = []

    async def write(caller: str) -> None:
        await isolated_services.poll_history.write()
        finished.append(caller)

    async def write_twice() -> None:
        isolated_services.poll_history.record(["q"], ["a"], "")
        await asyncio.gather(write("background service"), write("explain"))

    loop.run(write_twice())
    assert finished == ["background service", "explain"]
    assert isolated_db.value("SELECT job_type FROM poll_history") == "a"


def test_several_brokers_together_do_not_exceed_the_rows_of_the_poll_history(
    isolated_services: Broker, isolated_db: TestDatabase, loop: Loop
) -> None:
    """A broker that has restarted does not know what it recorded before."""
    infra = isolated_services.infra
    for number in range(4):
        polls = [PolledType("q", "known"), PolledType("q", f"new-{number}")]
        loop.run(store.record_polls(infra.db, polls, infra.now(), 4))
    assert isolated_db.value("SELECT count(*) FROM poll_history") == 3
    assert isolated_db.value("SELECT last_polled_at FROM poll_history WHERE job_type = 'known'") > isolated_db.value(
        "SELECT last_polled_at FROM poll_history WHERE job_type = 'new-1'"
    )
