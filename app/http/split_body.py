"""Large bodies, whose list of jobs, settlements or leases is checked and decoded chunk by chunk.

No other thread runs while a C function scans JSON, and so neither does the event loop: decoding 8 MB
in one call takes up to 30 ms. Therefore no call gets more than about CHUNK_BYTES.

Only the check decides what is valid. If the object around the list is valid, and each chunk is a
valid list, then so is the body, wherever it was cut.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from app.errors import Problem
from app.http.strict_json import MAX_DEPTH, decode_utf8

T = TypeVar("T")

CHUNK_BYTES = 16 * 1024
MAX_ITEM_BYTES = 1024 * 1024  # all parts of the largest valid item are smaller together

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_END_BEFORE_OBJECT = re.compile(rb"\}(?=,\s*+\{)")
_WHITESPACE = b" \t\r\n"
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


class SplitBody(NamedTuple):
    """The body with its list emptied, and the items of the list: several in each chunk."""

    outside: bytes
    chunks: list[bytes]


def split_list(data: bytes, name: str) -> SplitBody | None:
    """Takes the list `name` out of the body.

    None if the body is not valid, or unusual: other members before the list are long.
    """
    head = _head_before(name).match(data, 0, CHUNK_BYTES)
    if head is None:
        return None
    chunks: list[bytes] = []
    start = head.end()
    while end := _end_of_chunk(data, start):
        chunks.append(data[start:end].strip(_WHITESPACE))  # as an encoder writes a list
        if data[end : end + 1] == b"]":
            return SplitBody(data[: head.end()] + data[end:], chunks)
        if data[end : end + 1] != b",":
            return None
        start = end + 1
    return None


def _end_of_chunk(data: bytes, start: int) -> int | None:
    """Where an item of the list ends, about CHUNK_BYTES after `start`."""
    return _guess_end(data, start) or _find_end(data, start)


def _guess_end(data: bytes, start: int) -> int | None:
    """Where an object ends and another begins.

    The bytes before it are a list if these two are items, and not, for example, parts of a payload.
    This takes a fifth of the time of `_find_end`.
    """
    guess = _END_BEFORE_OBJECT.search(data, start + CHUNK_BYTES, start + 4 * CHUNK_BYTES)
    if guess is None:
        return None
    try:
        _raw_list.decode(b"[%b]" % data[start : guess.end()])
    except msgspec.DecodeError:
        return None
    return guess.end()


def _find_end(data: bytes, start: int) -> int | None:
    """Matches item by item."""
    position = start
    while item := _item().match(data, position, position + MAX_ITEM_BYTES):
        position = item.end()
        if position - start >= CHUNK_BYTES or data[position : position + 1] != b",":
            return position
        position += 1
    return None


class SplitBodyDecoder(Generic[T]):
    """Decodes bodies of a model with one list of models, or of raw JSON."""

    def __init__(self, kind: type[T]) -> None:
        self._name, item = _list_field(kind)
        self._outside = msgspec.json.Decoder(kind)
        self._items = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]

    def decode(self, data: bytes, check: Callable[[str], None]) -> T | None:
        """None if the body is unusual or invalid. Then the caller decodes it as a whole."""
        split = split_list(data, self._name)
        if split is None:
            return None
        try:
            check(decode_utf8(split.outside))
            for chunk in split.chunks:
                check(decode_utf8(b"[[%b]]" % chunk))  # nested as deep as in the body
            body = self._outside.decode(split.outside)
            items = [item for chunk in split.chunks for item in self._items.decode(b"[%b]" % chunk)]
        except (Problem, msgspec.DecodeError):
            return None
        return msgspec.structs.replace(body, **{self._name: items})  # type: ignore[type-var]


def _list_field(kind: type) -> tuple[str, type]:
    """The name of the list, and the type of its items."""
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else [field.type]
        for found in kinds:
            if isinstance(found, inspect.ListType) and isinstance(found.item_type, inspect.StructType):
                return field.name, found.item_type.cls
            if isinstance(found, inspect.ListType) and isinstance(found.item_type, inspect.RawType):
                return field.name, msgspec.Raw
    raise TypeError(f"{kind} has no list of models")


@cache
def _head_before(name: str) -> re.Pattern[bytes]:
    """Matches the start of an object up to the items of its list `name`."""
    quoted = b'"%b"' % name.encode()
    member = rb"\s*+(?!%b)%b\s*+:%b," % (quoted, _STRING, _item_pattern())
    return re.compile(rb"\s*+\{(?:%b)*+\s*+%b\s*+:\s*+\[" % (member, quoted), re.DOTALL)


@cache
def _item() -> re.Pattern[bytes]:
    return re.compile(_item_pattern(), re.DOTALL)


def _item_pattern() -> bytes:
    """Matches text up to the next comma or closing bracket that is not inside a string or brackets."""
    inside = b""
    for _ in range(MAX_DEPTH):
        inside = rb'(?:[^"\[\]{}]++|%b|[\[{]%b[\]}])*+' % (_STRING, inside)
    return rb'(?:[^"\[\]{},]++|%b|[\[{]%b[\]}])++' % (_STRING, inside)
