"""DELETE /queues/{name}: only when nothing is left in it; a deleted queue comes back clean, and no job in it is forgotten."""

from collections.abc import Callable

import pytest

from app.broker import Broker
from tests.api import Api, Json
from tests.broker import threaded_broker
from tests.conftest import QUICK, wait_until
from tests.database import Loop, TestDatabase
from tests.polls import Background

Revive = Callable[[], None]


@pytest.fixture
def revive(broker_services: Broker, loop: Loop) -> Revive:
    """The chore, run now."""
    return lambda: loop.run(broker_services.queue_service.revive_used())


def delete(api: Api, status: int = 200) -> Json:
    answer: Json = api.delete(f"/queues/{api.queue}", status=status)
    return answer


def exists(api: Api) -> bool:
    found = api.queue in [queue["name"] for page in api.pages("/queues") for queue in page]
    assert api.http.get(f"/queues/{api.queue}").status_code == (200 if found else 404)
    return found


def test_a_deleted_queue_is_told_as_it_was_and_is_gone(api: Api) -> None:
    api.configure(max_waiting=5, lanes=2)
    queue = api.post(f"/queues/{api.queue}/pause", {"reason": "deploy"})
    assert delete(api) == queue
    assert not exists(api)


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", ""), ("PATCH", ""), ("POST", "/pause"), ("POST", "/resume"), ("GET", "/stats")]
)
def test_a_deleted_queue_is_not_found(api: Api, method: str, path: str) -> None:
    api.configure()
    delete(api)
    response = api.http.request(method, f"/queues/{api.queue}{path}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert not exists(api)


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "dead"])
def test_a_queue_with_jobs_is_not_deleted(api: Api, state: str) -> None:
    api.configure(max_waiting=5, lanes=3)
    api.dead() if state == "dead" else api.enqueue(delay_seconds=60 if state == "scheduled" else 0)
    if state == "running":
        api.claim_one()
    assert delete(api, status=409)["code"] == "queue_not_empty"
    assert api.get(f"/queues/{api.queue}")["max_waiting"] == 5


def test_finished_jobs_do_not_count_and_keep_the_name_of_their_queue(api: Api) -> None:
    done, dropped = api.enqueue(), api.enqueue(delay_seconds=60)
    api.complete(api.claim_one())
    api.cancel(dropped)
    delete(api)
    assert [(api.job(job["id"])["queue"], api.job(job["id"])["state"]) for job in (done, dropped)] == [
        (api.queue, "completed"),
        (api.queue, "cancelled"),
    ]


def test_a_put_brings_a_queue_back_with_a_clean_configuration(api: Api) -> None:
    first = api.configure(max_waiting=5, fair=True)
    api.pause()
    delete(api)
    back = api.configure(max_running=3)
    assert back == {"name": api.queue, "created_at": first["created_at"], "max_running": 3, "lanes": 1, "paused": False}
    assert exists(api)


def test_a_job_brings_a_queue_back_with_a_clean_configuration(api: Api) -> None:
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


def test_a_broker_that_makes_no_queues_does_not_bring_one_back(api: Api, dsn: str) -> None:
    with threaded_broker(QUICK.model_copy(update={"create_queues": False}), dsn) as broker:
        strict = Api(broker.http, api.queue)
        strict.configure()
        delete(strict)
        assert strict.post("/jobs", {"queue": api.queue, "job_type": "test"}, status=404)["code"] == "not_found"


def test_a_deleted_queue_makes_room_for_another(api: Api, dsn: str, db: TestDatabase) -> None:
    api.configure()
    most = db.value("SELECT count(*) FROM queues WHERE deleted_at IS NULL")
    with threaded_broker(QUICK.model_copy(update={"max_queues": most}), dsn) as broker:
        full = Api(broker.http, api.queue)
        full.put(f"/queues/{api.queue}-a", {}, status=429)
        delete(full)
        full.put(f"/queues/{api.queue}-a", {})
        full.configure(status=429)
    assert not exists(api)


def test_a_queue_that_another_broker_brought_back_is_known_here_too(api: Api, dsn: str) -> None:
    """Statistics are of queues that this process knows."""
    with threaded_broker(QUICK, dsn) as broker:
        other = Api(broker.http, api.queue)
        api.configure()
        delete(api)
        wait_until(lambda: other.http.get(f"/queues/{api.queue}/stats").status_code == 404)
        other.enqueue()
        wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 200)


def test_a_deleted_queue_with_a_job_in_it_comes_back_and_every_process_hears_of_it(
    api: Api, db: TestDatabase, revive: Revive
) -> None:
    job = api.enqueue()
    db.execute(
        "UPDATE queues SET deleted_at = now() WHERE name = $1", api.queue
    )  # by somebody who could not see the job yet
    db.execute("UPDATE versions SET number = number + 1")
    is_back = "SELECT deleted_at IS NULL FROM queues WHERE name = $1"  # by the chore of the broker that all tests share
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 404 or db.value(is_back, api.queue))
    revive()
    assert exists(api)
    wait_until(lambda: api.http.get(f"/queues/{api.queue}/stats").status_code == 200)
    assert api.claim_one()["id"] == job["id"]


def test_a_deleted_queue_with_a_dead_letter_in_it_comes_back(api: Api, db: TestDatabase, revive: Revive) -> None:
    api.dead()
    db.execute("UPDATE queues SET deleted_at = now() WHERE name = $1", api.queue)
    revive()
    assert exists(api)


def test_an_empty_deleted_queue_stays_deleted(api: Api, db: TestDatabase, revive: Revive) -> None:
    api.enqueue()
    api.complete(api.claim_one())
    delete(api)
    before = db.value("SELECT number FROM versions")
    revive()
    assert not exists(api)
    assert db.value("SELECT number FROM versions") == before


def test_no_job_is_forgotten_when_its_queue_is_deleted_meanwhile(
    api: Api, dsn: str, revive: Revive, background: Background
) -> None:
    with threaded_broker(QUICK, dsn) as broker:
        other = Api(broker.http, api.queue)
        for _ in range(10):
            api.configure()
            deleted, job = background.together(lambda: api.http.delete(f"/queues/{api.queue}").json(), other.enqueue)
            revive()
            assert exists(api), deleted
            assert api.complete(api.claim_one(wait_seconds=20))["job_id"] == job["id"]
