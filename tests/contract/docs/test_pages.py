"""Compares README.md and the pages under docs with the code: links, names, states, settings, generated pages."""

import json
import re

from app.job_types import schema_subset
from app.settings import Settings
from tests.chaos.transition_rules import LEGAL
from tests.chaos.transitions import GONE
from tests.contract.docs.pages import PAGES, README, anchors, code, prose, text_of
from tests.faults.failover.patroni import DYNAMIC
from tests.paths import ROOT
from tests.table import table
from tests.tools.reference_pages import PAGES as REFERENCE_PAGES

OVERVIEW = "docs/architecture/overview.md"
LIFECYCLE = "docs/concepts/job-lifecycle.md"
GLOSSARY = "docs/glossary.md"
STATES = {"scheduled", "blocked", "ready", "running", "completed", "cancelled", "dead"}
INTERNAL_STATES = {"pending": "ready"}  # shown as ready
NOTHING = "[*]"


def test_readme_is_short() -> None:
    lines = text_of(README).splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


@table("page", PAGES)
def test_links_lead_to_existing_pages_and_anchors(page: str) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(str(target.relative_to(ROOT)))):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_the_index() -> None:
    index = text_of("docs/README.md")
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/") and page != "docs/README.md"]
    assert [page for page in pages if f"({page})" not in index] == []


@table("folder", ["app", "tests", "bench", "alembic"])
def test_cited_rules_and_faults_have_an_anchor(folder: str) -> None:
    known = {page: anchors(f"docs/reliability/{page}.md") for page in ("rules", "faults")}
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sql")]
    cited = {
        (page, anchor)
        for path in files
        for page, anchor in re.findall(r"docs/reliability/(rules|faults)\.md#(\w+)", path.read_text())
    }
    assert {citation for citation in cited if citation[1] not in known[citation[0]]} == set()


def test_overview_names_only_existing_paths() -> None:
    named = [name for name in re.findall(r"`([^`\s]+)`", text_of(OVERVIEW)) if "/" in name]
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_overview_names_every_package() -> None:
    packages = {f"app/{path.parent.name}/" for path in (ROOT / "app").glob("*/__init__.py")}
    assert {package for package in packages if f"`{package}`" not in text_of(OVERVIEW)} == set()


def test_overview_lists_the_subscribers_of_each_event() -> None:
    subscribers: dict[str, set[str]] = {}
    for path in (ROOT / "app").rglob("*.py"):
        for moved, event in re.findall(r"\bevents\.subscribe(?:(_moved)\(|\((\w+))", path.read_text()):
            subscribers.setdefault("JobsMoved" if moved else event, set()).add(str(path.relative_to(ROOT)))
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", text_of(OVERVIEW), re.MULTILINE)
    assert {event: set(re.findall(r"`([^`]+)`", cell)) for event, cell in rows} == subscribers


@table("page", [page for page in PAGES if page.startswith("docs/architecture/")])
def test_classes_in_diagrams_exist(page: str) -> None:
    sources = "".join(path.read_text() for path in (ROOT / "app").rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", sources, re.MULTILINE))
    named = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", "\n".join(code(page, "mermaid"))))
    assert named - classes == set()


@table("page", PAGES)
def test_paths_of_modules_exist(page: str) -> None:
    named = re.findall(r"`((?:app|tests|bench|alembic|examples|openapi)/[\w/.-]*)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


@table("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), re.MULTILINE))
    in_code = re.findall(r"^make ([\w-]+)", "\n".join(code(page, "sh") + code(page, "")), re.MULTILINE)
    in_prose = re.findall(r"`make ([a-z][\w-]*)", prose(page))
    assert {*in_code, *in_prose} - targets == set()


@table("page", PAGES)
def test_settings_exist(page: str) -> None:
    known = {f"LONGSHORE_{name.upper()}" for name in Settings.model_fields} | {"LONGSHORE_URL", "LONGSHORE_KEY"}
    assert set(re.findall(r"LONGSHORE_[A-Z_]*[A-Z]", text_of(page))) - known == set()


@table("name", REFERENCE_PAGES)
def test_reference_page_equals_the_generated_page(name: str) -> None:
    page = text_of(f"docs/reference/{name}.md")
    assert page == REFERENCE_PAGES[name]() + "\n", "`make reference` writes the pages"


def test_guide_to_job_types_names_the_limits_of_payload_schemas() -> None:
    guide = text_of("docs/guides/job-types.md")
    limits = (schema_subset.MAX_CHECKS, schema_subset.MAX_STEPS, schema_subset.MAX_PATTERN_SIZE)
    named = [*(f"`{keyword}`" for keyword in schema_subset.REFUSED_KEYWORDS), *(f"{limit:,}" for limit in limits)]
    assert [name for name in named if name not in guide] == []


def test_patroni_example_has_the_settings_of_the_patroni_test() -> None:
    (example,) = code("docs/operations/high-availability.md", "yaml")
    settings = {name: json.dumps(value) for name, value in DYNAMIC.items() if not isinstance(value, dict)}
    shown = dict(re.findall(r"^ +(\w+): (\w+) *(?:#.*)?$", example, re.MULTILINE))
    assert {name: shown.get(name) for name in settings} == settings


def test_glossary_is_sorted() -> None:
    public, internal = re.split(r"^## Internal words$", text_of(GLOSSARY), flags=re.MULTILINE)
    for part in (public, internal):
        words = [word for word in re.findall(r"^\| (.+?) \|", part, re.MULTILINE) if word not in ("word", "---")]
        assert words == sorted(words, key=str.casefold)


def diagram() -> set[tuple[str, str]]:
    (mermaid,) = code(LIFECYCLE, "mermaid")
    return set(re.findall(r"^\s+(\S+) --> (\S+)", mermaid, re.MULTILINE))


def as_shown(state: str) -> str:
    return INTERNAL_STATES.get(state, state) if state != GONE else NOTHING


def test_lifecycle_diagram_has_the_transitions_of_the_state_machine() -> None:
    """The chaos checker verifies the same state machine. It does not run for long enough for retention."""
    legal = {(as_shown(old), as_shown(new)) for old, states in LEGAL.items() for new in states}
    changes = {(old, new) for old, new in legal if old != new}
    assert diagram() == changes | {("completed", NOTHING), ("cancelled", NOTHING)}


def test_lifecycle_diagram_has_every_transition_named_in_sql() -> None:
    """A comment with the same states on both sides is about an update: the job may keep its state."""
    names = "|".join([*STATES, *INTERNAL_STATES])
    several = rf"(?:{names})(?: \| (?:{names}))*"
    found = set()
    for path in (ROOT / "app").rglob("*.sql"):
        for old, new in re.findall(rf"^--.*?({several}) -> ({several})", path.read_text(), re.MULTILINE):
            pairs = {(as_shown(a), as_shown(b)) for a in old.split(" | ") for b in new.split(" | ")}
            found |= set() if old == new else {(a, b) for a, b in pairs if a != b}
    assert len(found) > 10
    assert found - diagram() == set()


def test_lifecycle_lists_every_state() -> None:
    table = text_of(LIFECYCLE).partition("```mermaid")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == STATES
