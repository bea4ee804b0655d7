"""What is cached is kept fresh for those who go by it, and for nobody else."""

import asyncio

import pytest

from app.broker import Broker
from app.db import config_versions
from app.errors import DatabaseUnavailable
from tests.database import Loop


async def looks(broker_services: Broker, calls: int) -> float:
    """How much later than the first call the last look was, when the chore has come round."""
    await broker_services.infra.config_versions.ensure_fresh()
    before = broker_services.infra.config_versions._looked_at
    for _ in range(calls):
        await broker_services.infra.config_versions.keep_fresh()
    return broker_services.infra.config_versions._looked_at - before


def test_periodic_check_runs_while_callers_use_the_configuration(broker_services: Broker, loop: Loop) -> None:
    assert loop.run(looks(broker_services, 2)) > 0


def test_periodic_check_is_skipped_without_callers(broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
    assert loop.run(looks(broker_services, 2)) == 0


def test_periodic_check_runs_after_an_announced_change_without_callers(
    broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)

    async def hear() -> bool:
        await broker_services.infra.config_versions.ensure_fresh()
        broker_services.infra.config_versions.invalidate()
        await broker_services.infra.config_versions.keep_fresh()
        return broker_services.infra.config_versions.is_fresh()

    assert loop.run(hear())


def test_concurrent_callers_share_one_check_and_its_failure(broker_services: Broker, loop: Loop) -> None:
    """And what becomes of it."""

    async def fail() -> None:
        await asyncio.sleep(0)
        failures.append(1)
        raise DatabaseUnavailable("as this test wants it", "not_done")

    async def query() -> list[object]:
        await broker_services.infra.config_versions.ensure_fresh()
        broker_services.infra.config_versions.invalidate()
        broker_services.infra.config_versions._numbers["policies"] = -1
        broker_services.infra.config_versions._heard["policies"] = [fail]
        return [
            *await asyncio.gather(
                *[broker_services.infra.config_versions.ensure_fresh() for _ in range(20)], return_exceptions=True
            )
        ]

    failures: list[int] = []
    assert {type(answer) for answer in loop.run(query())} == {DatabaseUnavailable}
    assert len(failures) == 1
