"""The configuration is checked for changes while callers use it, and rarely otherwise."""

import asyncio
from collections.abc import Callable

import pytest

from app.broker import Broker
from app.db import config_versions
from app.errors import DatabaseUnavailable
from app.events import ConfigNotified
from app.periodic_service import PeriodicService
from tests.database import Loop


async def ends_before_a_longer_wait(broker_services: Broker, wake: Callable[[], None] | None = None) -> bool:
    """Whether the wait for the next periodic check ends before a wait that is 20 times as long."""
    waiting = asyncio.ensure_future(broker_services.infra.config_versions.wait(0.01))
    if wake is not None:
        asyncio.get_running_loop().call_later(0.01, wake)
    await PeriodicService().wait(0.2)
    is_done = waiting.done()
    waiting.cancel()
    return is_done


def test_checks_are_frequent_while_the_configuration_is_used(broker_services: Broker, loop: Loop) -> None:
    broker_services.infra.config_versions.record_use()
    assert loop.run(ends_before_a_longer_wait(broker_services))


def test_checks_are_rare_while_nothing_uses_the_configuration(
    broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
    assert not loop.run(ends_before_a_longer_wait(broker_services))


@pytest.mark.parametrize("reason", ["use", "announced change"])
def test_rare_checks_become_frequent_again(
    broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)

    def wake() -> None:
        if reason == "use":
            broker_services.infra.config_versions.record_use()
        else:
            broker_services.events.publish(ConfigNotified())

    assert loop.run(ends_before_a_longer_wait(broker_services, wake))


def test_concurrent_callers_share_one_check_and_its_failure(broker_services: Broker, loop: Loop) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        failures.append(1)
        raise DatabaseUnavailable("raised by the test", "not_done")

    async def call_concurrently() -> list[object]:
        await broker_services.infra.config_versions.ensure_fresh()
        broker_services.events.publish(ConfigNotified())
        broker_services.infra.config_versions._numbers["policies"] = -1
        broker_services.infra.config_versions._handlers["policies"] = [fail]
        return [
            *await asyncio.gather(
                *[broker_services.infra.config_versions.ensure_fresh() for _ in range(20)], return_exceptions=True
            )
        ]

    failures: list[int] = []
    assert {type(result) for result in loop.run(call_concurrently())} == {DatabaseUnavailable}
    assert len(failures) == 1
