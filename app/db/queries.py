"""Named statements: `<package>.sql` holds the text; a function of the same name in the package's
`store.py` runs it.

    -- name: x               starts a statement
    -- fills: Row            the type of its rows; a test compares its columns with the fields of the type
    -- as: y                 the text of y, changed by
    -- with: this => that    replacements of `this` by `that`

The comment of a statement says which transition it makes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_AS = re.compile(r"^-- as: (\w+)$", re.MULTILINE)
_WITH = re.compile(r"^-- with: (.+) => (.+)$", re.MULTILINE)
_FILLS = re.compile(r"^-- fills: (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Query:
    """One statement. `fills` names the type of its rows."""

    name: str
    text: str
    fills: str | None


class Queries:
    """The statements of one file, as attributes: `SQL.enqueue` is the text of the statement
    `enqueue`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all = {query.name: query for query in _parse(path.read_text())}

    def __getattr__(self, name: str) -> str:
        try:
            return self.all[name].text
        except KeyError:
            raise AttributeError(f"{self.path.name} has no statement named {name}") from None


def _parse(text: str) -> list[Query]:
    pieces = _HEAD.split(text)[1:]
    bodies = dict(zip(pieces[::2], pieces[1::2], strict=True))
    return [_query(name, _expand(body, bodies)) for name, body in bodies.items()]


def _expand(body: str, bodies: dict[str, str]) -> str:
    """Applies `-- as:` and `-- with:`."""
    original = _AS.search(body)
    if original is None:
        return body
    expanded = bodies[original[1]]
    for this, that in _WITH.findall(body):
        assert this in expanded, f"{original[1]} does not contain {this}"
        expanded = expanded.replace(this, that)
    return expanded


def _query(name: str, body: str) -> Query:
    fills = _FILLS.search(body)
    return Query(name, f"/* {name} */" + body.rstrip().removesuffix(";"), fills[1] if fills else None)


def load_queries(module_file: str) -> Queries:
    """Loads the .sql file that is named after the package of `module_file`."""
    package = Path(module_file).parent
    return Queries(package / f"{package.name}.sql")
