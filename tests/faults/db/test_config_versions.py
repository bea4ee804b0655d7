"""The configuration is checked for changes while callers use it, and rarely otherwise."""

import asyncio

import pytest

from app.broker import Broker
from app.db import config_versions
from app.errors import DatabaseUnavailable
from app.events import ConfigNotified
from tests.database import Loop


async def time_between_checks(broker_services: Broker, runs: int) -> float:
    """The seconds between the check of a caller and the last check of the periodic service."""
    await broker_services.infra.config_versions.ensure_fresh()
    before = broker_services.infra.config_versions._checked_at
    for _ in range(runs):
        await broker_services.infra.config_versions.run_once()
    return broker_services.infra.config_versions._checked_at - before


def test_periodic_check_runs_while_callers_use_the_configuration(broker_services: Broker, loop: Loop) -> None:
    assert loop.run(time_between_checks(broker_services, 2)) > 0


def test_periodic_check_is_skipped_without_callers(
    broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
    assert loop.run(time_between_checks(broker_services, 2)) == 0


def test_periodic_check_runs_after_an_announced_change_without_callers(
    broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)

    async def is_fresh_after_a_change() -> bool:
        await broker_services.infra.config_versions.ensure_fresh()
        broker_services.events.publish(ConfigNotified())
        await broker_services.infra.config_versions.run_once()
        return broker_services.infra.config_versions.is_fresh

    assert loop.run(is_fresh_after_a_change())


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
