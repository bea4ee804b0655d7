"""Large bodies, whose list of jobs, settlements or leases is checked and decoded chunk by chunk.

The event loop serves other requests between two chunks. Decoding 8 MB in one call takes up to
30 ms, during which no other request is served, not even if a thread calls the decoder: it keeps the
GIL. The pieces of the body are never joined, because that takes 4 ms.

Only the check decides what is valid. If the object around the list is valid, and each chunk is a
valid list, then so is the body, wherever it was cut.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from app.errors import Problem
from app.http.strict_json import MAX_DEPTH
from app.slices import in_slices

T = TypeVar("T")

CHUNK_BYTES = 16 * 1024
MAX_ITEM_BYTES = 1024 * 1024  # all parts of the largest valid item are smaller together

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_END_BEFORE_OBJECT = re.compile(rb"\}(?=,\s*+\{)")
_WHITESPACE = b" \t\r\n"
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


class SplitBodyDecoder(Generic[T]):
    """Decodes bodies of a model with one list of models, or of raw JSON."""

    def __init__(self, kind: type[T]) -> None:
        self._name, item = _list_field(kind)
        self._head = _head_before(self._name)
        self._outside = msgspec.json.Decoder(kind)
        self._items = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]

    async def decode(self, pieces: Sequence[bytes], check: Callable[[bytes], None]) -> T | None:
        """None if the body is unusual or invalid. Then the caller decodes it as a whole."""
        splitter = Splitter(pieces, self._head)
        items: list[Any] = []
        try:
            async for chunk in in_slices(splitter.chunks()):
                await _check_chunk(chunk, check)
                items += self._items.decode(b"[%b]" % chunk)
            if splitter.outside is None:
                return None
            check(splitter.outside)
            body = self._outside.decode(splitter.outside)
        except (Problem, msgspec.DecodeError):
            return None
        return msgspec.structs.replace(body, **{self._name: items})  # type: ignore[type-var]


async def _check_chunk(chunk: bytes, check: Callable[[bytes], None]) -> None:
    """Checks a chunk as a list that is nested as deep as it is in the body.

    Checks a single large item in a thread: it may take 20 ms.
    """
    if len(chunk) > 4 * CHUNK_BYTES:
        await asyncio.to_thread(lambda: check(b"[[%b]]" % chunk))
    else:
        check(b"[[%b]]" % chunk)


class Splitter:
    """Takes a list out of a body.

    `outside` is the body with the list emptied. It is None until all chunks are taken, and if the
    body is not valid, or unusual: members before the list are long, or an item is too large.
    """

    def __init__(self, pieces: Sequence[bytes], head: re.Pattern[bytes]) -> None:
        """`head` matches the body up to the first item of the list."""
        self.outside: bytes | None = None
        self._head = head
        self._pieces = iter(pieces)
        self._window = b""

    def chunks(self) -> Iterator[bytes]:
        """The items of the list: several in each chunk, separated by commas."""
        self._extend(4 * CHUNK_BYTES)
        head = self._head.match(self._window, 0, CHUNK_BYTES)
        before = self._take(head.end()) if head else b""
        while head and (end := self._end_of_chunk()):
            yield self._take(end).strip(_WHITESPACE)  # as an encoder writes a list
            if self._window.startswith(b"]"):
                self.outside = b"".join([before, self._window, *self._pieces])
                return
            self._take(1)

    def _take(self, size: int) -> bytes:
        taken, self._window = self._window[:size], self._window[size:]
        return taken

    def _extend(self, size: int) -> bool:
        """Adds pieces to the window until it has this size. False if there are none."""
        pieces, length = [self._window], len(self._window)
        while length < size and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            length += len(piece)
        if len(pieces) > 1:
            self._window = b"".join(pieces)
        return len(pieces) > 1

    def _end_of_chunk(self) -> int | None:
        """Where an item of the list ends, about CHUNK_BYTES after the start of the window."""
        self._extend(4 * CHUNK_BYTES)
        end = _guess_end(self._window) or _find_end(self._window)
        while end is None and self._extend(min(4 * len(self._window), MAX_ITEM_BYTES)):
            end = _find_end(self._window)
        return end


def _guess_end(window: bytes) -> int | None:
    """Where an object ends and another begins.

    The bytes before it are a list if these two are items, and not, for example, parts of a payload.
    This takes a fifth of the time of `_find_end`.
    """
    guess = _END_BEFORE_OBJECT.search(window, CHUNK_BYTES, 4 * CHUNK_BYTES)
    if guess is None:
        return None
    try:
        _raw_list.decode(b"[%b]" % window[: guess.end()])
    except msgspec.DecodeError:
        return None
    return guess.end()


def _find_end(window: bytes) -> int | None:
    """Matches item by item. None if an item is not complete."""
    position = 0
    while item := _item.match(window, position, position + MAX_ITEM_BYTES):
        position = item.end()
        separator = window[position : position + 1]
        if separator == b"]" or (separator == b"," and position >= CHUNK_BYTES):
            return position
        if separator != b",":
            return None
        position += 1
    return None


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
