"""All named statements of the broker, for tests that check each of them."""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from app.db.migrations import ROOT
from app.db.queries import Queries, Query

TABLES_WITH_LANES = (
    "jobs",
    "ready_spans",
    "lease_checks",
    "finished_jobs",
    "dead_letters",
    "deduplication_keys",
    "lane_locks",
    "rate_limit_usage",
    "group_cooldowns",
    "dependents",
    "finished_parents",
    "stat_deltas",
    "stat_totals",
    "stat_rates",
    "stat_durations",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement and its package."""

    package: str
    query: Query

    def __str__(self) -> str:
        return f"{self.package}.{self.name}"

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def text(self) -> str:
        """The text that Postgres gets, with $1, $2, …"""
        return self.query.sql

    @property
    def code(self) -> str:
        """The text with the names of its parameters."""
        return self.query.text

    @property
    def comment(self) -> str:
        return self.query.comment

    @property
    def fills(self) -> str | None:
        return self.query.row

    @property
    def store(self) -> ModuleType:
        return import_module(f"app.{self.package}.store")


def all_statements() -> list[Statement]:
    files = sorted((ROOT / "app").glob("*/*.sql"))
    assert files, "no SQL files found"
    return [Statement(file.parent.name, query) for file in files for query in vars(Queries(file)).values()]


ALL_STATEMENTS = all_statements()


def statement_named(name: str) -> Statement:
    """Returns the statement of that name, of any package."""
    matches = [statement for statement in ALL_STATEMENTS if statement.name == name]
    assert len(matches) == 1, matches
    return matches[0]
