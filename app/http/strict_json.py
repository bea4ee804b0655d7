"""Checks that JSON is strict: that Postgres, workers and browsers read it in the same way.

The checks do not return the decoded JSON, because a payload is stored as the text that was sent.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from app.errors import Fault, ValidationFailed
from app.http import json_syntax

MAX_DEPTH = 64
MAX_VALUES = 10_000  # per payload; a batch may have as many values for each of its jobs
MAX_DIGITS = 64
MAX_SHOWN = 100  # characters of a key that an error shows

# Decoding and encoding this many values takes about 15 ms, during which no other thread runs.
_MAX_PLAIN_VALUES = 50_000
_DIGITS_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * MAX_DIGITS
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURAL = bytes(set(range(256)) - set(b'[]{}"\\'))
_OPENING = ord("[")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_WINDOW = 64 * 1024  # characters for one call of a C function, which takes about 0.2 ms

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_INVALID_TEXT = re.compile("[\x00\ud800-\udfff]")
_INVALID_TEXT_EXCEPT_NUL = re.compile("[\ud800-\udfff]")
_REJECTED_VALUE = object()  # placeholder for a rejected value


class _Rejected(ValueError):
    """The text is valid JSON, but not strict JSON."""


def check(data: bytes, *, max_values: int = MAX_VALUES, allow_nul: bool = False) -> None:
    """Checks a body. Raises 400 for bytes that are not JSON, and 422 with a pointer for JSON that
    is not strict."""
    decoded = json_syntax.decode_utf8(data)
    try:
        _check_value_count(decoded, max_values)
        if not _is_plain(data):
            _scan_fully(decoded, allow_nul)
    except _Rejected as rejection:
        raise ValidationFailed(
            str(rejection), faults=[Fault(_locate(decoded, allow_nul), "unsafe_json", str(rejection))]
        ) from None
    except json.JSONDecodeError as error:
        raise json_syntax.malformed(error) from None


def value_count_fault(raw: bytes, pointer: str) -> Fault | None:
    """Returns a fault if a payload has too many values. `check` limits only the values of a whole
    body, which may contain many payloads."""
    try:
        if len(raw) >= MAX_VALUES:
            _check_value_count(raw.decode(), MAX_VALUES)
    except _Rejected as rejection:
        return Fault(pointer, "unsafe_json", str(rejection))
    return None


def nul_fault(decoded: str | None, pointer: str) -> Fault | None:
    """Returns a fault if user data contains NUL, which Postgres cannot store as JSON.

    This check is only needed if `check` has allowed NUL in the body. The broker removes NUL from
    the other texts of such a body, for example from the error message of a worker.
    """
    if decoded is not None and "\\u0000" in decoded and _NUL.search(decoded):
        return Fault(pointer, "unsafe_json", "\\u0000 is not supported: Postgres cannot store it")
    return None


def _is_plain(data: bytes) -> bool:
    """Whether the text is identical to the output of an encoder for the decoded text.

    Such a text has no duplicate key (encoding would drop it) and no unusual number (encoding would
    change it). This check takes a sixth of the time of a full scan: 2.3 µs instead of 14 µs for a
    job of 200 bytes in a batch.
    """
    # Searching for one byte first is ten times faster than searching for six.
    has_nul = b"\\" in data and b"\\u0000" in data
    # Counting the commas takes 0.1 µs for a job of 200 bytes. Short texts need no count.
    has_many_values = len(data) > _MAX_PLAIN_VALUES and data.count(b",") > _MAX_PLAIN_VALUES
    if has_nul or has_many_values or _LONG_NUMBER in data.translate(_DIGITS_TO_ZEROS):
        return False
    try:
        value = msgspec.json.decode(data)  # rejects lone surrogates, NaN, and numbers that are too large
        return data in _encodings(value, data) and _is_shallow(value, data)
    except (ValueError, RecursionError):
        return False


def _encodings(value: object, data: bytes) -> Iterator[bytes]:
    """Yields the value in the three usual encodings: compact, with spaces (as Python encodes), and
    with spaces and escaped non-ASCII characters."""
    compact = msgspec.json.encode(value)
    yield compact
    yield msgspec.json.format(compact, indent=0)
    if b"\\u" in data:
        yield json.dumps(value).encode()


def _is_shallow(value: object, data: bytes) -> bool:
    """Whether the nesting is at most MAX_DEPTH.

    Makes only one pass over the bytes. A second pass, even one that only counted a single byte
    value, would take half as long as the first.
    """
    structure = data.translate(_BRACES_TO_BRACKETS, _NOT_STRUCTURAL).replace(b'""', b"")
    if len(structure) <= MAX_DEPTH:
        return True
    # `structure` has lost the quotes of all strings, except of strings that contain a bracket or a
    # backslash. If no quote and no backslash is left, every bracket is structural.
    if b'"' not in structure and b"\\" not in structure:
        return _are_brackets_shallow(structure)
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in (dict, list)
        ]
    return not level


def _are_brackets_shallow(brackets: bytes) -> bool:
    """Whether the nesting is at most MAX_DEPTH. Removes the innermost pairs of brackets MAX_DEPTH
    times, and checks that no bracket is left. This is three times as fast as visiting the
    values."""
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return True
    return False


def _scan_fully(decoded: str, allow_nul: bool) -> None:
    _check_depth(decoded)
    if "\\u" in decoded:
        _check_escapes(decoded, allow_nul)
    json.loads(
        decoded,
        object_pairs_hook=_unique_members,
        parse_int=_short_integer,
        parse_float=_finite_number,
        parse_constant=_reject_constant,
    )


def _check_value_count(decoded: str, max_values: int) -> None:
    """Rejects a text with more than `max_values` values.

    Counts opening brackets and commas. The count is an upper bound, because strings may contain
    these characters, too. If it is too high, counts again without the strings.
    """
    if len(decoded) < max_values or _count_values(decoded) < max_values:
        return
    if _count_values(_outside_strings(decoded)) >= max_values:
        raise _Rejected(f"more than {max_values} values")


def _outside_strings(decoded: str) -> str:
    """Removes the strings: splits the text at quotes that are not escaped, and keeps every other
    piece.

    Works window by window, because one call for all of 8 MB would block other threads, among them
    the event loop.
    """
    pieces: list[str] = []
    inside = False
    for window in _windows(decoded):
        parts = window.replace("\\\\", "").replace('\\"', "").split('"')
        pieces += parts[inside::2]
        inside ^= len(parts) % 2 == 0
    return "".join(pieces)


def _windows(decoded: str) -> Iterator[str]:
    """Yields the text in pieces. No piece ends inside an escape sequence such as `\\"`."""
    start = 0
    while start < len(decoded):
        window = decoded[start : start + _WINDOW]
        if (len(window) - len(window.rstrip("\\"))) % 2:
            window = decoded[start : start + _WINDOW + 1]
        yield window
        start += len(window)


def _count_values(structure: str) -> int:
    """Counts the values, about: returns the number of opening brackets and commas."""
    return structure.count("[") + structure.count("{") + structure.count(",")


def _check_depth(decoded: str) -> None:
    if decoded.count("[") + decoded.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _outside_strings(decoded).encode().translate(_BRACES_TO_BRACKETS, _NOT_BRACKETS):
        depth += 1 if bracket == _OPENING else -1
        if depth > MAX_DEPTH:
            raise _Rejected(f"nested more than {MAX_DEPTH} levels deep")


def _check_escapes(decoded: str, allow_nul: bool) -> None:
    if not allow_nul and _NUL.search(decoded):
        raise _Rejected("\\u0000 is not supported: Postgres cannot store it")
    if _SURROGATE.search(_PAIR.sub(r"\1_", decoded)):
        raise _Rejected("lone surrogate")


def _unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _Rejected(f"duplicate key {json.dumps(repeated[:MAX_SHOWN])} in an object")
    return members


def _short_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _Rejected(f"a number of more than {MAX_DIGITS} digits")
    return 0


def _finite_number(digits: str) -> float:
    if len(digits) > MAX_DIGITS or math.isinf(float(digits)):
        raise _Rejected("a number that does not fit into a double")
    return 0.0


def _reject_constant(name: str) -> None:
    raise _Rejected(f"{name} is not valid JSON")


def _locate(decoded: str, allow_nul: bool) -> str:
    """Finds the pointer to the first rejected value, by parsing the rejected text again."""
    try:
        tree = json.loads(
            decoded,
            object_pairs_hook=_or_placeholder(_unique_members),
            parse_int=_or_placeholder(_short_integer),
            parse_float=_or_placeholder(_finite_number),
            parse_constant=_or_placeholder(_reject_constant),
        )
    except (ValueError, RecursionError):
        return ""
    return "".join(
        f"/{step}" for step in _steps(tree, _INVALID_TEXT_EXCEPT_NUL if allow_nul else _INVALID_TEXT, 1) or []
    )


def _or_placeholder(check: Callable[[Any], object]) -> Callable[[Any], object]:
    """Wraps a hook of the parser, so that it returns a placeholder for a rejected value instead of
    raising."""

    def parse(value: Any) -> object:
        try:
            return check(value)
        except _Rejected:
            return _REJECTED_VALUE

    return parse


def _steps(value: object, invalid_text: re.Pattern[str], depth: int) -> list[str] | None:
    """Finds the steps of the pointer from `value` to the first rejected value in it. Returns None
    if there is none."""
    if value is _REJECTED_VALUE or (isinstance(value, str) and invalid_text.search(value)):
        return []
    if isinstance(value, dict | list) and depth > MAX_DEPTH:
        return []
    for step, member in _members(value):
        if invalid_text.search(step):
            return []
        steps = _steps(member, invalid_text, depth + 1)
        if steps is not None:
            return [step.replace("~", "~0").replace("/", "~1"), *steps]
    return None


def _members(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return value.items()
    return ((str(index), item) for index, item in enumerate(value)) if isinstance(value, list) else ()
