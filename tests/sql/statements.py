"""Every statement of the product, for the tests that look at each of them."""

import re
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from app.db.migrations import ROOT
from app.db.queries import Queries

LANED = (
    "jobs",
    "finished_jobs",
    "dead_letters",
    "keys",
    "gates",
    "passes",
    "rests",
    "dependents",
    "endings",
    "stat_deltas",
    "stat_totals",
    "stat_rates",
    "stat_times",
)


@dataclass(frozen=True, slots=True)
class Named:
    """A statement and the room it lives in."""

    room: str
    name: str
    text: str
    fills: str | None

    def __str__(self) -> str:
        return f"{self.room}.{self.name}"

    @property
    def code(self) -> str:
        """The text without comments."""
        return re.sub(r"--[^\n]*|/\*.*?\*/", "", self.text)

    @property
    def store(self) -> ModuleType:
        return import_module(f"app.{self.room}.store")


def all_statements() -> list[Named]:
    files = sorted((ROOT / "app").glob("*/*.sql"))
    assert files, "the rooms have SQL files"
    return [
        Named(file.parent.name, statement.name, statement.text, statement.fills)
        for file in files
        for statement in Queries(file).all.values()
    ]


ALL = all_statements()


def named(name: str) -> Named:
    """The one statement of that name, in whichever room."""
    found = [statement for statement in ALL if statement.name == name]
    assert len(found) == 1, found
    return found[0]
