"""JSON that every parser reads alike: what Postgres, a worker or a browser could take differently is refused at the door.

Checks bytes; decodes nothing for keeps. The payload that was checked is stored as the text that was sent.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from app.errors import Fault, MalformedJson, ValidationFailed

MAX_DEPTH = 64
MAX_NODES = 10_000  # per payload; a batch may hold that many for each of its items
MAX_DIGITS = 64
MAX_SHOWN = 100  # characters of a key in an error

_QUICK = 50_000  # values; to decode and encode as many takes some 15 ms, in which no other thread runs
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * MAX_DIGITS
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"\\'))

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_BAD_TEXT = re.compile("[\x00\ud800-\udfff]")
_BAD_TEXT_BUT_NUL = re.compile("[\ud800-\udfff]")
_BAD = object()  # stands for a refused value


class _Refused(ValueError):
    """JSON, but not JSON that we take."""


def text(body: bytes) -> str:
    """UTF-8 without a byte order mark and without NUL, or 400: anything else is not JSON (RFC 8259)."""
    try:
        decoded = body.decode()
    except UnicodeDecodeError as error:
        raise MalformedJson(f"the body is not UTF-8 (byte {error.start})") from error
    if decoded.startswith("\ufeff") or "\x00" in decoded:
        raise MalformedJson("the body has a byte order mark or a NUL byte")
    return decoded


def check(decoded: str, *, max_nodes: int = MAX_NODES, nul_in_text: bool = False) -> None:
    """Raises 400 for what is not JSON and 422, with a pointer, for what not everyone reads alike."""
    try:
        _scan(decoded, max_nodes, nul_in_text)
    except _Refused as refusal:
        raise ValidationFailed(
            str(refusal), faults=[Fault(_locate(decoded, nul_in_text), "unsafe_json", str(refusal))]
        ) from None
    except json.JSONDecodeError as error:
        raise MalformedJson(f"{error.msg} (line {error.lineno}, column {error.colno})") from None


def check_nodes(raw: bytes, pointer: str) -> None:
    """A batch is checked as a whole; each payload in it still has a cap of its own."""
    if len(raw) < MAX_NODES:
        return
    try:
        _check_nodes(raw.decode(), MAX_NODES)
    except _Refused as refusal:
        raise ValidationFailed.at(pointer, str(refusal), "unsafe_json") from None


def check_no_nul(decoded: str | None, pointer: str) -> None:
    """For user data in bodies whose other texts may have NUL characters (a worker's error message is stripped of them)."""
    if decoded is not None and "\\u0000" in decoded and _NUL.search(decoded):
        raise ValidationFailed.at(pointer, "\\u0000 cannot be stored", "unsafe_json")


def _scan(decoded: str, max_nodes: int, nul_in_text: bool) -> None:
    _check_nodes(decoded, max_nodes)
    if not _is_plain(decoded):
        _scan_fully(decoded, nul_in_text)


def _is_plain(decoded: str) -> bool:
    """Whether it is just what an encoder would write: then no key stands twice, as one would be lost, and no number is odd, as it would
    be spelt another way. To find out takes a sixth of a full scan: 2.3 µs, not 14, for a job of 200 bytes in a batch."""
    data = decoded.encode()
    has_nul = b"\\" in data and b"\\u0000" in data  # one byte is found ten times quicker than six
    if has_nul or decoded.count(",") > _QUICK or _LONG in data.translate(_ZEROS):
        return False
    try:
        value = msgspec.json.decode(data)  # takes no half of a surrogate pair, no NaN, and no number that is too large
        return data in _spellings(value, data) and _is_shallow(value, data)
    except (ValueError, RecursionError):
        return False


def _spellings(value: object, data: bytes) -> Iterator[bytes]:
    """As most write it; as Python does; and as Python writes what is not ASCII."""
    compact = msgspec.json.encode(value)
    yield compact
    yield msgspec.json.format(compact, indent=0)
    if b"\\u" in data:
        yield json.dumps(value).encode()


def _is_shallow(value: object, data: bytes) -> bool:
    marks = data.translate(_ONE_KIND, _NO_MARKS).replace(
        b'""', b""
    )  # a pass through all is dear: one of this, or half of a count
    if len(marks) <= MAX_DEPTH:
        return True
    if b'"' not in marks and b"\\" not in marks:  # no text has a bracket in it, or its quotes would be left
        return _are_shallow(marks)
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for whole in level
            for part in (whole.values() if type(whole) is dict else whole)
            if type(part) in (dict, list)
        ]
    return not level


def _are_shallow(brackets: bytes) -> bool:
    """Takes the innermost pairs out until none is left: a third of the time that it takes to walk through the values."""
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return True
    return False


def _scan_fully(decoded: str, nul_in_text: bool) -> None:
    _check_depth(decoded)
    if "\\u" in decoded:
        _check_escapes(decoded, nul_in_text)
    json.loads(
        decoded, object_pairs_hook=_unique, parse_int=_short, parse_float=_finite, parse_constant=_refuse_constant
    )


def _check_nodes(decoded: str, max_nodes: int) -> None:
    """Counting brackets and commas is an upper bound; only when it is too high are strings taken out and counted exactly."""
    if len(decoded) < max_nodes or _nodes(decoded) < max_nodes:
        return
    if _nodes(_outside_strings(decoded)) >= max_nodes:
        raise _Refused(f"more than {max_nodes} values")


def _outside_strings(decoded: str) -> str:
    """The text without its strings. Matches string by string, because one substitution would block other threads, and so the event loop,
    for the whole of 8 MB."""
    pieces, end = [], 0
    for string in _STRING.finditer(decoded):
        pieces.append(decoded[end : string.start()])
        end = string.end()
    return "".join([*pieces, decoded[end:]])


def _nodes(marks: str) -> int:
    return marks.count("[") + marks.count("{") + marks.count(",")


def _check_depth(decoded: str) -> None:
    if decoded.count("[") + decoded.count("{") <= MAX_DEPTH:
        return
    depth = deepest = 0
    for character in _outside_strings(decoded):
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise _Refused(f"nested deeper than {MAX_DEPTH}")


def _check_escapes(decoded: str, nul_in_text: bool) -> None:
    if not nul_in_text and _NUL.search(decoded):
        raise _Refused("\\u0000 cannot be stored")
    if _SURROGATE.search(_PAIR.sub(r"\1_", decoded)):
        raise _Refused("half of a surrogate pair is not a character")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _Refused(f"duplicate key {json.dumps(repeated[:MAX_SHOWN])} in an object")
    return members


def _short(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _Refused(f"a number of more than {MAX_DIGITS} digits")
    return 0


def _finite(digits: str) -> float:
    if len(digits) > MAX_DIGITS or math.isinf(float(digits)):
        raise _Refused("a number that no double can hold")
    return 0.0


def _refuse_constant(name: str) -> None:
    raise _Refused(f"{name} is not JSON")


def _locate(decoded: str, nul_in_text: bool) -> str:
    """The pointer to the first refused value. Reads everything once more, but only for requests that fail anyway."""
    try:
        tree = json.loads(
            decoded,
            object_pairs_hook=_marking(_unique),
            parse_int=_marking(_short),
            parse_float=_marking(_finite),
            parse_constant=_marking(_refuse_constant),
        )
    except (ValueError, RecursionError):
        return ""
    return "".join(f"/{step}" for step in _steps(tree, _BAD_TEXT_BUT_NUL if nul_in_text else _BAD_TEXT, 1) or [])


def _marking(check: Callable[[Any], object]) -> Callable[[Any], object]:
    def read(found: Any) -> object:
        try:
            return check(found)
        except _Refused:
            return _BAD

    return read


def _steps(value: object, bad_text: re.Pattern[str], depth: int) -> list[str] | None:
    if value is _BAD or (isinstance(value, str) and bad_text.search(value)):
        return []
    if isinstance(value, dict | list) and depth > MAX_DEPTH:
        return []
    for step, member in _parts(value):
        if bad_text.search(step):
            return []
        steps = _steps(member, bad_text, depth + 1)
        if steps is not None:
            return [step.replace("~", "~0").replace("/", "~1"), *steps]
    return None


def _parts(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return value.items()
    return ((str(index), item) for index, item in enumerate(value)) if isinstance(value, list) else ()
