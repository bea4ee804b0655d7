"""The cache of queues: what it reads, and when."""

from uuid import uuid4

import pytest

from app.broker import Broker
from app.db.lanes import lane_of, queue_id_of
from app.db.pool import Executor
from app.queues import cache, store
from app.queues.cache import QueueCache
from app.queues.store import QueueRow
from tests.api_client import Api
from tests.database import Loop, TestDatabase


@pytest.fixture
def queues(broker_services: Broker, loop: Loop) -> QueueCache:
    loop.run(broker_services.queues.refresh())
    return broker_services.queues


@pytest.fixture
def pages(broker_services: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pages that these services read while they reload all queues."""
    sizes: list[int] = []
    read_page = store.queues_after

    async def record(db: Executor, after: int, limit: int) -> list[QueueRow]:
        rows = await read_page(db, after, limit)
        if db is broker_services.infra.db:
            sizes.append(len(rows))
        return rows

    monkeypatch.setattr(store, "queues_after", record)
    return sizes


def create_in_another_process(db: TestDatabase, name: str) -> int:
    """Creates a queue without a change of the configuration version. Returns its id."""
    queue_id: int = db.value("INSERT INTO queues (id, name) SELECT max(id) + 1, $1 FROM queues RETURNING id", name)
    return queue_id


def test_unknown_names_and_ids_do_not_reload_all_queues(
    api: Api, queues: QueueCache, pages: list[int], loop: Loop
) -> None:
    api.configure()
    assert loop.run(queues.find(f"{api.queue}.unknown")) is None
    assert [queue.name for queue in loop.run(queues.find_all([api.queue, f"{api.queue}.unknown"]))] == [api.queue]
    assert loop.run(queues.has_lane(lane_of(uuid4()))) is False
    assert pages == []


def test_queue_created_by_another_process_is_found_at_once(
    api: Api, queues: QueueCache, pages: list[int], loop: Loop, db: TestDatabase
) -> None:
    """By its name, and by the id in a lane, even if it was unknown a moment ago."""
    api.configure()
    assert loop.run(queues.find(f"{api.queue}.a")) is None
    queue_ids = [create_in_another_process(db, f"{api.queue}.{letter}") for letter in "ab"]
    found = loop.run(queues.find(f"{api.queue}.a"))
    assert found is not None
    assert found.id == queue_ids[0]
    assert loop.run(queues.find_name(queue_ids[1] * 256)) == f"{api.queue}.b"
    assert pages == []


def test_list_of_all_queues_includes_one_created_by_another_process(
    api: Api, queues: QueueCache, pages: list[int], loop: Loop, db: TestDatabase
) -> None:
    api.configure()
    loop.run(queues.load_all())
    pages.clear()
    loop.run(queues.load_all())
    assert pages == [], "nothing has changed, so nothing is reloaded"
    queue_id = create_in_another_process(db, f"{api.queue}.new")
    loop.run(queues.load_all())
    assert queue_id in {queue_id_of(lane) for lane in loop.run(queues.all_lanes())}


def test_queues_of_all_pages_are_cached(
    api: Api, queues: QueueCache, pages: list[int], loop: Loop, db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PAGE_SIZE", 2)
    for number in range(3):
        api.put(f"/queues/{api.queue}.{number}", {})
    api.delete(f"/queues/{api.queue}.1")
    loop.run(queues.refresh())
    assert pages[0] == 2
    assert sum(pages) == db.value("SELECT count(*) FROM queues")
    names = {queue.name for queue in queues.all()}
    assert {name for name in names if name.startswith(f"{api.queue}.")} == {f"{api.queue}.0", f"{api.queue}.2"}
    assert {queue.name for queue in queues.all_including_deleted()} >= {f"{api.queue}.1"}


def test_unchanged_queues_keep_their_objects(api: Api, queues: QueueCache, loop: Loop) -> None:
    """Defaults of jobs are cached by the identity of their queue."""
    for number in range(2):
        api.put(f"/queues/{api.queue}.{number}", {})
    before = [loop.run(queues.get(f"{api.queue}.{number}")) for number in range(2)]
    api.post(f"/queues/{api.queue}.0/pause")
    loop.run(queues.refresh())
    after = [loop.run(queues.get(f"{api.queue}.{number}")) for number in range(2)]
    assert [old is new for old, new in zip(before, after, strict=True)] == [False, True]
