"""Large bodies, whose list of jobs, settlements or leases is checked and decoded chunk by chunk.

The event loop serves other requests between two chunks. Decoding 8 MB in one call takes up to
30 ms, during which no other request is served, not even if a thread calls the decoder: it keeps the
GIL.

Only the check decides what is valid. If the object around the list is valid, and each chunk is a
valid list, then so is the body, wherever it was cut.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from app.errors import Problem
from app.http.strict_json import MAX_DEPTH, decode_utf8
from app.slices import in_slices

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


async def split_list(data: bytes | bytearray, head_pattern: re.Pattern[bytes]) -> SplitBody | None:
    """Takes the list after the head out of the body.

    None if the body is not valid, or unusual: other members before the list are long.
    """
    head = head_pattern.match(data, 0, CHUNK_BYTES)
    if head is None:
        return None
    chunks: list[bytes] = []
    start = head.end()
    async for end in in_slices(_chunk_ends(data, start)):
        chunks.append(bytes(data[start:end]).strip(_WHITESPACE))  # as an encoder writes a list
        start = end + 1
    is_complete = data[start - 1 : start] == b"]"
    return SplitBody(bytes(data[: head.end()] + data[start - 1 :]), chunks) if is_complete else None


def _chunk_ends(data: bytes | bytearray, start: int) -> Iterator[int]:
    """The positions of the commas between two chunks, and of the character after the last one."""
    while end := _end_of_chunk(data, start):
        yield end
        if data[end : end + 1] != b",":
            return
        start = end + 1


def _end_of_chunk(data: bytes | bytearray, start: int) -> int | None:
    """Where an item of the list ends, about CHUNK_BYTES after `start`."""
    return _guess_end(data, start) or _find_end(data, start)


def _guess_end(data: bytes | bytearray, start: int) -> int | None:
    """Where an object ends and another begins.

    The bytes before it are a list if these two are items, and not, for example, parts of a payload.
    This takes a fifth of the time of `_find_end`.
    """
    guess = _END_BEFORE_OBJECT.search(data, start + CHUNK_BYTES, start + 4 * CHUNK_BYTES)
    if guess is None:
        return None
    try:
        _raw_list.decode(b"[%b]" % bytes(data[start : guess.end()]))
    except msgspec.DecodeError:
        return None
    return guess.end()


def _find_end(data: bytes | bytearray, start: int) -> int | None:
    """Matches item by item."""
    position = start
    while item := _item.match(data, position, position + MAX_ITEM_BYTES):
        position = item.end()
        if position - start >= CHUNK_BYTES or data[position : position + 1] != b",":
            return position
        position += 1
    return None


class SplitBodyDecoder(Generic[T]):
    """Decodes bodies of a model with one list of models, or of raw JSON."""

    def __init__(self, kind: type[T]) -> None:
        self._name, item = _list_field(kind)
        self._head = _head_before(self._name)
        self._outside = msgspec.json.Decoder(kind)
        self._items = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]

    async def decode(self, data: bytes | bytearray, check: Callable[[str], None]) -> T | None:
        """None if the body is unusual or invalid. Then the caller decodes it as a whole."""
        split = await split_list(data, self._head)
        if split is None:
            return None
        items: list[Any] = []
        try:
            check(decode_utf8(split.outside))
            body = self._outside.decode(split.outside)
            async for chunk in in_slices(split.chunks):
                await _check_chunk(chunk, check)
                items += self._items.decode(b"[%b]" % chunk)
        except (Problem, msgspec.DecodeError):
            return None
        return msgspec.structs.replace(body, **{self._name: items})  # type: ignore[type-var]


async def _check_chunk(chunk: bytes, check: Callable[[str], None]) -> None:
    """Checks a chunk as a list that is nested as deep as it is in the body.

    Checks a single large item in a thread: it may take 20 ms.
    """
    if len(chunk) > 4 * CHUNK_BYTES:
        await asyncio.to_thread(lambda: check(decode_utf8(b"[[%b]]" % chunk)))
    else:
        check(decode_utf8(b"[[%b]]" % chunk))


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


def _item_pattern(depth: int) -> bytes:
    """Matches text up to the next comma or closing bracket that is not inside a string or brackets."""
    inside = b""
    for _ in range(depth):
        inside = rb'(?:[^"\[\]{}]++|%b|[\[{]%b[\]}])*+' % (_STRING, inside)
    return rb'(?:[^"\[\]{},]++|%b|[\[{]%b[\]}])++' % (_STRING, inside)


_item = re.compile(_item_pattern(MAX_DEPTH), re.DOTALL)


def _head_before(name: str) -> re.Pattern[bytes]:
    """Matches the start of an object up to the items of its list `name`."""
    quoted = b'"%b"' % name.encode()
    member = rb"\s*+(?!%b)%b\s*+:%b," % (quoted, _STRING, _item_pattern(1))
    return re.compile(rb"\s*+\{(?:%b)*+\s*+%b\s*+:\s*+\[" % (member, quoted), re.DOTALL)
