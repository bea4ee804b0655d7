"""Changes of queues by several brokers at once, and how they hear of each other's."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import QUICK, wait_until
from tests.polls import Background

FIELDS: Json = {
    "max_running": 10,
    "max_running_per_group": 2,
    "max_waiting": 1000,
    "fair": True,
    "default_priority": -5,
    "default_lease_seconds": 120,
    "default_max_attempts": 7,
}


@pytest.fixture(params=[True, False], ids=["told by notify", "found by looking"])
def second(request: pytest.FixtureRequest, dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(QUICK.model_copy(update={"notify": request.param}), dsn) as broker:
        yield broker


def cached(broker: RunningBroker, name: str) -> Any:
    """The queue as that broker decides by it, or None."""
    assert broker.broker_services is not None
    return next((queue for queue in broker.broker_services.queues.known() if queue.name == name), None)


def test_a_change_is_in_force_here_when_it_is_answered(broker: RunningBroker, api: Api) -> None:
    api.configure(max_running=3)
    assert cached(broker, api.queue).max_running == 3
    api.post(f"/queues/{api.queue}/pause")
    assert cached(broker, api.queue).paused
    api.patch(f"/queues/{api.queue}", {"max_running": 4})
    assert (cached(broker, api.queue).paused, cached(broker, api.queue).max_running) == (True, 4)
    api.resume()
    assert not cached(broker, api.queue).paused
    api.delete(f"/queues/{api.queue}")
    assert cached(broker, api.queue) is None


def test_a_change_is_in_force_elsewhere_soon(api: Api, second: RunningBroker) -> None:
    api.configure(max_running=3)
    wait_until(lambda: cached(second, api.queue) and cached(second, api.queue).max_running == 3)
    api.post(f"/queues/{api.queue}/pause")
    wait_until(lambda: cached(second, api.queue).paused)
    api.post(f"/queues/{api.queue}/resume")
    wait_until(lambda: not cached(second, api.queue).paused)
    api.delete(f"/queues/{api.queue}")
    wait_until(lambda: cached(second, api.queue) is None)
    api.configure(lanes=2)
    wait_until(lambda: cached(second, api.queue) and cached(second, api.queue).lanes == 2)


def test_changes_of_different_fields_at_once_all_stand(api: Api, second: RunningBroker, background: Background) -> None:
    api.configure()
    apis = [api, Api(second.http, api.queue)]
    calls = [
        lambda name=name, value=value, at=apis[number % 2]: at.patch(f"/queues/{api.queue}", {name: value})
        for number, (name, value) in enumerate(FIELDS.items())
    ]
    background.together(*calls)
    queue = api.get(f"/queues/{api.queue}")
    assert {name: queue.get(name) for name in FIELDS} == FIELDS


def test_puts_of_new_queues_at_once_all_stand(api: Api, second: RunningBroker, background: Background) -> None:
    apis = [api, Api(second.http, api.queue)]
    names = [f"{api.queue}-{number % 3}" for number in range(12)]
    calls = [
        lambda name=name, at=apis[number // 3 % 2]: at.put(f"/queues/{name}", {"max_waiting": 5})
        for number, name in enumerate(names)
    ]
    assert [(queue["name"], queue["max_waiting"]) for queue in background.together(*calls)] == [
        (name, 5) for name in names
    ]
    assert len({api.enqueue(queue=name)["queue"] for name in names}) == 3


def test_an_enqueue_and_a_put_at_once_make_one_queue(api: Api, second: RunningBroker, background: Background) -> None:
    """Whoever was first, the queue is configured and has the job."""
    other = Api(second.http, api.queue)
    for number in range(6):
        name = f"{api.queue}-{number}"
        background.together(
            lambda name=name: api.enqueue(queue=name),
            lambda name=name: other.put(f"/queues/{name}", {"max_waiting": 5}),
        )  # type: ignore[misc]
        assert api.get(f"/queues/{name}")["max_waiting"] == 5
        assert api.claim_one(queues=[name])["queue"] == name
