"""Concurrent changes of queues by several brokers, and how the changes reach the others."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.api_client import Api, Json
from tests.broker import RunningBroker, threaded_broker
from tests.conftest import TEST_SETTINGS, wait_until
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


@pytest.fixture(scope="module", params=[True, False], ids=["with NOTIFY", "by polling"])
def second_broker(request: pytest.FixtureRequest, dsn: str) -> Iterator[RunningBroker]:
    with threaded_broker(TEST_SETTINGS.model_copy(update={"notify": request.param}), dsn) as broker:
        yield broker


def cached_queue(broker: RunningBroker, name: str) -> Any:
    """The queue in the cache of that broker, or None."""
    assert broker.broker_services is not None
    return next((queue for queue in broker.broker_services.queues.all() if queue.name == name), None)


def test_configuration_change_is_in_effect_on_this_broker_when_the_call_returns(
    broker: RunningBroker, api: Api
) -> None:
    api.configure(max_running=3)
    assert cached_queue(broker, api.queue).max_running == 3
    api.post(f"/queues/{api.queue}/pause")
    assert cached_queue(broker, api.queue).paused
    api.patch(f"/queues/{api.queue}", {"max_running": 4})
    assert (cached_queue(broker, api.queue).paused, cached_queue(broker, api.queue).max_running) == (True, 4)
    api.resume()
    assert not cached_queue(broker, api.queue).paused
    api.delete(f"/queues/{api.queue}")
    assert cached_queue(broker, api.queue) is None


@pytest.mark.slow
def test_configuration_change_takes_effect_on_other_brokers(api: Api, second_broker: RunningBroker) -> None:
    api.configure(max_running=3)
    wait_until(
        lambda: cached_queue(second_broker, api.queue) and cached_queue(second_broker, api.queue).max_running == 3
    )
    api.post(f"/queues/{api.queue}/pause")
    wait_until(lambda: cached_queue(second_broker, api.queue).paused)
    api.post(f"/queues/{api.queue}/resume")
    wait_until(lambda: not cached_queue(second_broker, api.queue).paused)
    api.delete(f"/queues/{api.queue}")
    wait_until(lambda: cached_queue(second_broker, api.queue) is None)
    api.configure(lanes=2)
    wait_until(lambda: cached_queue(second_broker, api.queue) and cached_queue(second_broker, api.queue).lanes == 2)


def test_concurrent_patches_of_different_members_are_all_kept(
    api: Api, second_broker: RunningBroker, background: Background
) -> None:
    api.configure()
    apis = [api, Api(second_broker.http, api.queue)]
    calls = [
        lambda name=name, value=value, client=apis[number % 2]: client.patch(f"/queues/{api.queue}", {name: value})
        for number, (name, value) in enumerate(FIELDS.items())
    ]
    background.together(*calls)
    queue = api.get(f"/queues/{api.queue}")
    assert {name: queue.get(name) for name in FIELDS} == FIELDS


def test_concurrent_puts_of_new_queues_all_succeed(
    api: Api, second_broker: RunningBroker, background: Background
) -> None:
    apis = [api, Api(second_broker.http, api.queue)]
    names = [f"{api.queue}-{number % 3}" for number in range(12)]
    calls = [
        lambda name=name, client=apis[number // 3 % 2]: client.put(f"/queues/{name}", {"max_waiting": 5})
        for number, name in enumerate(names)
    ]
    assert [(queue["name"], queue["max_waiting"]) for queue in background.together(*calls)] == [
        (name, 5) for name in names
    ]
    assert len({api.enqueue(queue=name)["queue"] for name in names}) == 3


def test_concurrent_enqueue_and_put_create_one_configured_queue(
    api: Api, second_broker: RunningBroker, background: Background
) -> None:
    """Whichever call comes first, the queue is configured and has the job."""
    other_api = Api(second_broker.http, api.queue)
    for number in range(6):
        name = f"{api.queue}-{number}"
        background.together(
            partial(api.enqueue, queue=name), partial(other_api.put, f"/queues/{name}", {"max_waiting": 5})
        )
        assert api.get(f"/queues/{name}")["max_waiting"] == 5
        assert api.claim_one(queues=[name])["queue"] == name
