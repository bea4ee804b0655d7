"""Identifiers use the words of docs/glossary.md, and none of the words that the glossary replaced."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache

from tests.paths import ROOT

FOLDERS = ("app", "alembic", "tests", "bench", "examples")

# Words of the old vocabulary. No identifier contains them.
_OLD_WORDS = """
    house houses room rooms floor floors door doors furnish furnished chore chores nudge nudges nudged sweep sweeps
    told tell tells hear hears heard look looks stir stirs stirred gate gates border borders doorkeeper keyring intake
    wanted judge judged verdict verdicts bury buried burial burials beat beats beating turn turns rest rests rested
    sorting stray strays ask asks asked roster reckoning fold folds folded unfolded ladder revive revived reviving
    watching weighing walking endless mint minted dice hot guard guards edge deaf spare spared mend mended dear awaits
    awaited ending endings parentage family families hand hands handed handing lateness doomed lived carry firing
    keeping taking releasing configuring issuing purging explaining reclaim reclaims spend lift seam ceiling meanwhile
    beaten story stories strangers looker drowsy deserted crowded
"""
# Other old words are not in the list, because they have an ordinary meaning, too: round (trip), exchange (of HTTP),
# unread (bytes), probe, offer, hold (back), known, entry (of a list), share, rules, times, everything, reach, served.
OLD_WORDS = frozenset(_OLD_WORDS.split())
# Shorthand for a noun. The name of a test is a sentence, which may contain them.
SHORTHAND = frozenset({"few", "most", "own", "some", "whole"})
# These are no names on their own.
PRONOUNS = frozenset({"one", "ones", "thing", "things", "those", "what", "who"})
# The name of a test begins with its subject, and these are none.
NO_SUBJECTS = PRONOUNS | {"both", "everything", "it", "nobody", "nothing", "something", "that", "they", "this"}
# Python may use them: polls are parked (a public word), and a fair queue makes passes.
OLD_SQL_WORDS = OLD_WORDS | SHORTHAND | {"parked", "parks", "passes"}

# Exceptions: files, and the words that their identifiers may contain.
ALLOWED = {
    "app/settings.py": "sweep",  # the public setting LONGSHORE_SWEEP_SECONDS
    "app/leases/schemas.py": "beat",  # LeaseBeat is a component of openapi.json
    "app/stats/*.py": "verdict",  # a member of the responses of GET /stats
    "tests/api/stats/test_health.py": "verdict",
    "app/schedules/cron.py": "fold",  # `datetime.fold` of PEP 495
    "bench/report.py": "most verdict",  # members of the files in bench/results
    "app/concurrency/concurrency.sql": "passes",  # the passes of a fair queue
    "alembic/*.sql": "floor",  # the function floor() of Postgres
}
EXCEPTIONS = [(files, word) for files, words in ALLOWED.items() for word in words.split()]


def split_words(identifier: str) -> list[str]:
    """Splits snake case and camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)]


@cache
def names_in_python(source: str) -> list[str]:
    """The names that the source defines. Names that it only uses may come from libraries."""
    return list(_definitions(source))


def _definitions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name


def names_in_sql(source: str) -> Iterator[str]:
    """All identifiers, and keywords with them. The names of statements are in comments."""
    yield from re.findall(r"^-- name: (\w+)", source, re.MULTILINE)
    yield from re.findall(r"[A-Za-z_]\w*", re.sub(r"--[^\n]*|'[^']*'", "", source))


def names_in_javascript(source: str) -> list[str]:
    """All identifiers and keywords, except members of objects (`.name`), which libraries may have
    named. Comments and strings are removed in one pass, because each may contain the marks of the
    other."""
    code = re.sub(r"""//[^\n]*|"[^"\n]*"|'[^'\n]*'|`[^`]*`""", "", source)
    return re.findall(r"(?<![.\w])[A-Za-z_]\w*", code)


def names_in_shell(source: str) -> list[str]:
    """Functions, and variables that are assigned."""
    return re.findall(r"([A-Za-z_]\w*)(?:=|\(\))", source)


def old_words_in_code(name: str) -> frozenset[str]:
    denied = OLD_WORDS if name.startswith("test_") else OLD_WORDS | SHORTHAND
    return denied.intersection(split_words(name)) | PRONOUNS.intersection({name})


def old_words_in_sql(name: str) -> frozenset[str]:
    return OLD_SQL_WORDS.intersection(split_words(name)) | PRONOUNS.intersection({name})


LANGUAGES: dict[str, tuple[Callable[[str], Iterable[str]], Callable[[str], frozenset[str]]]] = {
    ".py": (names_in_python, old_words_in_code),
    ".mjs": (names_in_javascript, old_words_in_code),
    ".sh": (names_in_shell, old_words_in_code),
    ".sql": (names_in_sql, old_words_in_sql),
}


@cache
def offenders() -> dict[tuple[str, str], set[str]]:
    """The identifiers with an old word, by file and word."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")):
        if path.suffix in LANGUAGES:
            names_in, old_words_in = LANGUAGES[path.suffix]
            for name in (path.stem, *names_in(path.read_text())):
                for word in old_words_in(name):
                    found[str(path.relative_to(ROOT)), word].add(name)
    return found


def test_identifiers_contain_no_word_of_the_old_vocabulary() -> None:
    mismatches = [
        f"{file}: {word}: {', '.join(sorted(names))}"
        for (file, word), names in offenders().items()
        if not any(fnmatch(file, files) and word == allowed for files, allowed in EXCEPTIONS)
    ]
    assert not mismatches, "\n".join(["docs/glossary.md has other words for:", *mismatches])


def test_every_exception_of_the_vocabulary_is_needed() -> None:
    found = offenders()
    unneeded = [
        (files, allowed)
        for files, allowed in EXCEPTIONS
        if not any(fnmatch(file, files) and word == allowed for file, word in found)
    ]
    assert unneeded == []


def test_names_of_tests_begin_with_a_subject() -> None:
    tests = [
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in names_in_python(path.read_text())
        if name.startswith("test_")
    ]
    assert [name for name in tests if name.split("_")[1] in NO_SUBJECTS] == []


def test_words_of_an_identifier_are_found_in_snake_and_camel_case() -> None:
    assert split_words("HTTPDoor_keptOpen2") == ["http", "door", "kept", "open"]
    source = "class Door(Base):\n    def hear(self, room: int) -> None:\n        self.gate = room.walking(fold=1)\n"
    assert set(names_in_python(source)) == {"Door", "hear", "self", "room", "gate"}
    assert "door" not in set(names_in_sql("SELECT lane FROM jobs WHERE state = 'door' -- the door"))
    script = """const door = hear.floor(`${room}`, "gate"); // the peer's house"""
    assert names_in_javascript(script) == ["const", "door", "hear"]
    assert names_in_shell("door() {\n  local room=$floor\n}") == ["door", "room"]
    assert old_words_in_code("test_claim_has_its_own_lease") == set()
    assert old_words_in_code("own_lease") == {"own"}
    assert old_words_in_sql("one") == {"one"}
