"""DELETE /queues/{name}: only empty queues can be deleted.

An undeleted queue has a default configuration, and no job of it is lost.
"""

from collections.abc import Callable

import pytest

from app.broker import Broker
from tests.api_client import Api, Json
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
from tests.database import Loop, TestDatabase
from tests.polls import Background
from tests.table import table

UndeleteQueues = Callable[[], None]


@pytest.fixture
def undelete_queues(broker_services: Broker, loop: Loop) -> UndeleteQueues:
    """Runs the maintenance service that undeletes queues with jobs."""
    return lambda: loop.run(broker_services.queue_service.repair())


def delete(api: Api, status: int = 200) -> Json:
    response: Json = api.delete(f"/queues/{api.queue}", status=status)
    return response


def exists(api: Api) -> bool:
    is_listed = api.queue in [queue["name"] for page in api.pages("/queues") for queue in page]
    assert api.http.get(f"/queues/{api.queue}").status_code == (200 if is_listed else 404)
    return is_listed


def test_delete_returns_the_last_state_and_hides_the_queue(api: Api) -> None:
    api.configure(max_waiting=5, lanes=2)
    queue = api.post(f"/queues/{api.queue}/pause", {"reason": "deploy"})
    assert delete(api) == queue
    assert not exists(api)


@table(("method", "path"), [("DELETE", ""), ("PATCH", ""), ("POST", "/pause"), ("POST", "/resume"), ("GET", "/stats")])
def test_operations_on_a_deleted_queue_are_not_found(api: Api, method: str, path: str) -> None:
    api.configure()
    delete(api)
    response = api.http.request(method, f"/queues/{api.queue}{path}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert not exists(api)


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "dead"])
def test_queue_with_jobs_cannot_be_deleted(api: Api, state: str) -> None:
    api.configure(max_waiting=5, lanes=3)
    api.dead_letter() if state == "dead" else api.enqueue(delay_seconds=60 if state == "scheduled" else 0)
    if state == "running":
        api.claim_one()
    assert delete(api, status=409)["code"] == "queue_not_empty"
    assert api.get(f"/queues/{api.queue}")["max_waiting"] == 5


def test_queue_with_only_finished_jobs_can_be_deleted_and_the_jobs_keep_its_name(api: Api) -> None:
    completed, cancelled = api.enqueue(), api.enqueue(delay_seconds=60)
    api.complete(api.claim_one())
    api.cancel(cancelled)
    delete(api)
    assert [(api.job(job["id"])["queue"], api.job(job["id"])["state"]) for job in (completed, cancelled)] == [
        (api.queue, "completed"),
        (api.queue, "cancelled"),
    ]


def test_put_undeletes_a_queue_without_its_old_configuration(api: Api) -> None:
    first = api.configure(max_waiting=5, fair=True)
    api.pause()
    delete(api)
    undeleted = api.configure(max_running=3)
    assert undeleted == {
        "name": api.queue,
        "created_at": first["created_at"],
        "max_running": 3,
        "lanes": 1,
        "paused": False,
    }
    assert exists(api)


def test_enqueue_undeletes_a_queue_without_its_old_configuration(api: Api) -> None:
    first = api.configure(max_waiting=5, fair=True)
    api.pause()
    delete(api)
    job = api.enqueue()
    assert api.get(f"/queues/{api.queue}") == {
        "name": api.queue,
        "created_at": first["created_at"],
        "lanes": 1,
        "paused": False,
    }
    assert api.claim_one()["id"] == job["id"]


def test_enqueue_undeletes_no_queue_if_create_queues_is_off(no_creation_api: Api) -> None:
    no_creation_api.configure()
    delete(no_creation_api)
    assert no_creation_api.enqueue(status=404)["code"] == "not_found"


def test_deleted_queue_does_not_count_toward_max_queues(api: Api, dsn: str, db: TestDatabase) -> None:
    api.configure()
    limit = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL")
    with threaded_broker(TEST_SETTINGS.model_copy(update={"max_queues": limit}), dsn) as broker:
        limited = Api(broker.http, api.queue)
        limited.put(f"/queues/{api.queue}-a", {}, status=429)
        delete(limited)
        limited.put(f"/queues/{api.queue}-a", {})
        limited.configure(status=429)
    assert not exists(api)


def test_queue_undeleted_by_another_broker_is_visible_here(api: Api, second_api: Api) -> None:
    """Checked with the statistics, which cover the queues in the cache of the process."""
    api.configure()
    delete(api)
    wait_until(lambda: second_api.http.get(f"/queues/{api.queue}/stats").status_code == 404)
    second_api.enqueue()
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 200)


def test_deleted_queue_with_a_job_is_undeleted_in_every_process(
    api: Api, db: TestDatabase, undelete_queues: UndeleteQueues
) -> None:
    job = api.enqueue()
    # As a transaction that could not see the job yet would delete the queue.
    db.execute("UPDATE queues SET deleted_at = now() WHERE name = $1", api.queue)
    db.execute("UPDATE config_versions SET number = number + 1")
    # The maintenance service of the broker that all tests share may undelete the queue first.
    undeleted = "SELECT deleted_at IS NULL FROM queues WHERE name = $1"
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 404 or db.value(undeleted, api.queue))
    undelete_queues()
    assert exists(api)
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 200)
    assert api.claim_one()["id"] == job["id"]


def test_deleted_queue_with_a_dead_letter_is_undeleted(
    api: Api, db: TestDatabase, undelete_queues: UndeleteQueues
) -> None:
    api.dead_letter()
    db.execute("UPDATE queues SET deleted_at = now() WHERE name = $1", api.queue)
    undelete_queues()
    assert exists(api)


def test_empty_deleted_queue_stays_deleted(api: Api, db: TestDatabase, undelete_queues: UndeleteQueues) -> None:
    api.enqueue()
    api.complete(api.claim_one())
    delete(api)
    before = db.value("SELECT number FROM config_versions")
    undelete_queues()
    assert not exists(api)
    assert db.value("SELECT number FROM config_versions") == before


def test_job_enqueued_during_a_delete_is_delivered(
    api: Api, second_api: Api, undelete_queues: UndeleteQueues, background: Background
) -> None:
    for _ in range(10):
        api.configure()
        deleted, job = background.together(lambda: api.http.delete(f"/queues/{api.queue}").json(), second_api.enqueue)
        undelete_queues()
        assert exists(api), deleted
        assert api.complete(api.claim_one(wait_seconds=20))["job_id"] == job["id"]
