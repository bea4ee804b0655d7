"""What is cached is kept fresh for those who go by it, and for nobody else."""

import asyncio

import pytest

from app.db import versions
from app.house import House
from tests.database import Loop


def test_while_somebody_asks_others_need_not_look(house: House, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "AWAKE_SECONDS", 1.0)

    async def ask() -> tuple[float, float]:
        await house.floor.versions.fresh()
        before = house.floor.versions._looked_at
        await house.floor.versions.keep_fresh()
        return before, house.floor.versions._looked_at

    asked, looked = loop.run(ask())
    assert looked > asked


def test_for_nobody_it_does_not_look(house: House, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "AWAKE_SECONDS", 0.0)

    async def ask() -> tuple[float, float]:
        await house.floor.versions.fresh()
        before = house.floor.versions._looked_at
        await house.floor.versions.keep_fresh()
        return before, house.floor.versions._looked_at

    asked, looked = loop.run(ask())
    assert looked == asked


def test_who_comes_after_a_while_looks_himself_and_wakes_who_looks_for_others(house: House, loop: Loop) -> None:
    woken = asyncio.Event()
    house.floor.versions.nudge = woken.set

    async def ask() -> bool:
        await house.floor.versions.fresh()
        return woken.is_set()

    assert loop.run(ask())
