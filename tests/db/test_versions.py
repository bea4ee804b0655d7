"""What is cached is kept fresh for those who go by it, and for nobody else."""

import asyncio

import pytest

from app.broker import Broker
from app.db import config_versions
from app.errors import DatabaseUnavailable
from tests.database import Loop


async def looks(broker_services: Broker, calls: int) -> float:
    """How much later than the first call the last look was, when the chore has come round."""
    await broker_services.infra.versions.ensure_fresh()
    before = broker_services.infra.versions._looked_at
    for _ in range(calls):
        await broker_services.infra.versions.keep_fresh()
    return broker_services.infra.versions._looked_at - before


def test_while_somebody_asks_others_need_not_look(broker_services: Broker, loop: Loop) -> None:
    assert loop.run(looks(broker_services, 2)) > 0


def test_for_nobody_it_does_not_look(broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
    assert loop.run(looks(broker_services, 2)) == 0


def test_when_something_has_changed_it_looks_though_nobody_asks(
    broker_services: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)

    async def hear() -> bool:
        await broker_services.infra.versions.ensure_fresh()
        broker_services.infra.versions.invalidate()
        await broker_services.infra.versions.keep_fresh()
        return broker_services.infra.versions.is_fresh()

    assert loop.run(hear())


def test_many_who_come_after_a_while_share_a_look(broker_services: Broker, loop: Loop) -> None:
    """And what becomes of it."""

    async def fail() -> None:
        await asyncio.sleep(0)
        failures.append(1)
        raise DatabaseUnavailable("as this test wants it", "not_done")

    async def query() -> list[object]:
        await broker_services.infra.versions.ensure_fresh()
        broker_services.infra.versions.invalidate()
        broker_services.infra.versions._numbers["policies"] = -1
        broker_services.infra.versions._heard["policies"] = [fail]
        return [
            *await asyncio.gather(
                *[broker_services.infra.versions.ensure_fresh() for _ in range(20)], return_exceptions=True
            )
        ]

    failures: list[int] = []
    assert {type(answer) for answer in loop.run(query())} == {DatabaseUnavailable}
    assert len(failures) == 1
