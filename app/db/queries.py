"""Named statements: `<room>.sql` holds the text, a function of the same name in the room's store runs it.

A statement starts at `-- name: x`, may say `-- fills: Shape` (a test compares its columns with the shape's fields), and its
comment says which transition it makes. `-- as: y` and `-- with: this => that` make it the text of y with that instead of this.
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
    name: str
    text: str
    fills: str | None


class Queries:
    """The statements of one file, as attributes: `SQL.enqueue` is the text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all = {statement.name: statement for statement in _parse(path.read_text())}

    def __getattr__(self, name: str) -> str:
        try:
            return self.all[name].text
        except KeyError:
            raise AttributeError(f"{self.path.name} has no statement named {name}") from None


def _parse(text: str) -> list[Query]:
    pieces = _HEAD.split(text)[1:]
    bodies = dict(zip(pieces[::2], pieces[1::2], strict=True))
    return [_statement(name, _varied(body, bodies)) for name, body in bodies.items()]


def _varied(body: str, bodies: dict[str, str]) -> str:
    original = _AS.search(body)
    if original is None:
        return body
    varied = bodies[original[1]]
    for this, that in _WITH.findall(body):
        assert this in varied, f"{original[1]} does not say {this}"
        varied = varied.replace(this, that)
    return varied


def _statement(name: str, body: str) -> Query:
    fills = _FILLS.search(body)
    return Query(name, f"/* {name} */" + body.rstrip().removesuffix(";"), fills[1] if fills else None)


def load_queries(module_file: str) -> Queries:
    """The .sql file that bears the name of the room in which `module_file` lies."""
    room = Path(module_file).parent
    return Queries(room / f"{room.name}.sql")
