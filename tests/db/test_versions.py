"""What is cached is kept fresh for those who go by it, and for nobody else."""

import asyncio

import pytest

from app.broker import Broker
from app.db import config_versions
from app.errors import DatabaseUnavailable
from tests.database import Loop


async def looks(house: Broker, calls: int) -> float:
    """How much later than the first call the last look was, when the chore has come round."""
    await house.floor.versions.fresh()
    before = house.floor.versions._looked_at
    for _ in range(calls):
        await house.floor.versions.keep_fresh()
    return house.floor.versions._looked_at - before


def test_while_somebody_asks_others_need_not_look(house: Broker, loop: Loop) -> None:
    assert loop.run(looks(house, 2)) > 0


def test_for_nobody_it_does_not_look(house: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)
    assert loop.run(looks(house, 2)) == 0


def test_when_something_has_changed_it_looks_though_nobody_asks(house: Broker, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_versions, "AWAKE_SECONDS", -1.0)

    async def hear() -> bool:
        await house.floor.versions.fresh()
        house.floor.versions.outdated()
        await house.floor.versions.keep_fresh()
        return house.floor.versions.is_fresh()

    assert loop.run(hear())


def test_many_who_come_after_a_while_share_a_look(house: Broker, loop: Loop) -> None:
    """And what becomes of it."""

    async def fail() -> None:
        await asyncio.sleep(0)
        failures.append(1)
        raise DatabaseUnavailable("as this test wants it", "not_done")

    async def ask() -> list[object]:
        await house.floor.versions.fresh()
        house.floor.versions.outdated()
        house.floor.versions._numbers["policies"] = -1
        house.floor.versions._heard["policies"] = [fail]
        return [*await asyncio.gather(*[house.floor.versions.fresh() for _ in range(20)], return_exceptions=True)]

    failures: list[int] = []
    assert {type(answer) for answer in loop.run(ask())} == {DatabaseUnavailable}
    assert len(failures) == 1
