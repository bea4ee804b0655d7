"""Checks the reliability pages against the code.

The tests and metrics that they name exist, and the catalogue of faults is complete.
"""

import re

import httpx
import pytest

from app.db.config_versions import FRESH_SECONDS
from tests.contract.docs.pages import text_of
from tests.paths import ROOT

FAULTS = "docs/reliability/faults.md"
SECURITY = "docs/reliability/security.md"
RUNBOOK = "docs/operations/runbook.md"
API_KEYS = "docs/guides/api-keys.md"
# The number of faults in each part of the catalogue: A client, B broker, C database, D input,
# E security, F change.
CATALOGUE = {"A": 27, "B": 15, "C": 35, "D": 20, "E": 22, "F": 8}


@pytest.mark.parametrize("page", [SECURITY, FAULTS])
def test_named_tests_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", text_of(page))
    assert named
    missing = [
        (path, test)
        for path, test in named
        if not (ROOT / path).exists() or (test and f"def {test}(" not in text_of(path))
    ]
    assert missing == []


def test_catalogue_has_every_fault_in_order() -> None:
    headings = re.findall(r'^### <a id="(\w+)"></a>([A-F]\d+) · ', text_of(FAULTS), re.MULTILINE)
    assert [anchor for anchor, _ in headings] == [name.lower() for _, name in headings]
    assert [name for _, name in headings] == [
        f"{part}{number}" for part, count in CATALOGUE.items() for number in range(1, count + 1)
    ]


def test_every_rule_has_a_heading_in_order() -> None:
    rules = re.findall(r'^### <a id="r(\d+)"></a>R(\d+) · ', text_of("docs/reliability/rules.md"), re.MULTILINE)
    assert rules == [(f"{number}", f"{number}") for number in range(1, 21)]


def test_metrics_of_the_runbook_exist(http: httpx.Client) -> None:
    named = set(re.findall(r"`(longshore_\w+?)(?:_total)?(?:\{\w+\})?`", text_of(RUNBOOK)))
    known = set(re.findall(r"^# HELP (longshore_\w+?)(?:_total)? ", http.get("/metrics").text, re.MULTILINE))
    assert len(named) > 10
    assert named - known == set()


def test_every_document_names_the_same_time_for_a_revoked_key() -> None:
    """The time is the maximum age of a broker's configuration."""
    required = (API_KEYS, SECURITY, "SECURITY.md", "openapi/openapi.json", "app/cli/api_keys.py")
    sources = {*required, *(str(path.relative_to(ROOT)) for path in (ROOT / "app").rglob("*.py"))}
    times = {
        name: re.findall(r"(?i)(?:revo|rejects the key)[^.|]*?within\s+(a second|[\d.]+ \w+)", text_of(name))
        for name in sources
    }
    assert {time for found in times.values() for time in found} == {f"{FRESH_SECONDS * 1000:.0f} ms"}
    assert [name for name in required if not times[name]] == []
