"""SECURITY.md and docs/faults.md name tests: those exist, and every row of the catalogue of faults is told of."""

import re
from pathlib import Path

import httpx
import pytest

from app.db.config_versions import FRESH_SECONDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("SECURITY.md", "docs/faults.md", "docs/operations.md")
# A client, B broker, C database, D input, E security, F change: how many rows each part of the catalogue has.
CATALOGUE = {"A": 27, "B": 14, "C": 35, "D": 20, "E": 22, "F": 8}


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/faults.md"])
def test_the_tests_it_names_exist(name: str) -> None:
    named = re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", text_of(name))
    assert named
    missing = [
        (path, test)
        for path, test in named
        if not (ROOT / path).exists() or (test and f"def {test}(" not in text_of(path))
    ]
    assert missing == []


def test_every_fault_of_the_catalogue_is_told_of() -> None:
    told = re.findall(r"^\| ([A-F]\d+) \|", text_of("docs/faults.md"), re.MULTILINE)
    assert told == [f"{part}{number}" for part, rows in CATALOGUE.items() for number in range(1, rows + 1)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_its_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(name))
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []


def test_the_metrics_that_operators_are_told_of_exist(http: httpx.Client) -> None:
    told = set(re.findall(r"`(longshore_\w+?)(?:_total)?(?:\{\w+\})?`", text_of("docs/operations.md")))
    known = set(re.findall(r"^# HELP (longshore_\w+?)(?:_total)? ", http.get("/metrics").text, re.MULTILINE))
    assert len(told) > 10
    assert told - known == set()


def test_every_document_gives_the_same_time_for_a_revoked_key() -> None:
    """The time is the maximum age of a broker's configuration."""
    sources = [
        "README.md",
        "SECURITY.md",
        "openapi/openapi.json",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "app").rglob("*.py")),
    ]
    given = {name: re.findall(r"(?i)revo[^.|]*?within (a second|[\d.]+ \w+)", text_of(name)) for name in sources}
    assert {time for times in given.values() for time in times} == {f"{FRESH_SECONDS * 1000:.0f} ms"}
    assert all(given[name] for name in ("README.md", "SECURITY.md", "openapi/openapi.json", "app/key_commands.py"))
