"""Checks and decodes a large batch in chunks of its list of jobs, settlements or leases.

The event loop serves other requests between two chunks. Decoding 8 MB in one call takes up to
30 ms, during which no other request is served. A thread would not help, because the decoder keeps
the GIL. The pieces in which the body arrived are never joined, because that takes 4 ms.

Even if the list is cut at a wrong place, an invalid body is never accepted: `strict_json.check`
checks every part. If the object around the list is valid JSON, and the items of each chunk are a
valid JSON list, then the body is valid JSON.
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
MAX_ITEM_BYTES = 1024 * 1024  # larger than any valid item, by the default limits

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_END_BEFORE_OBJECT = re.compile(rb"\}(?=,\s*+\{)")
_WHITESPACE = b" \t\r\n"
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


class SplitBodyDecoder(Generic[T]):
    """Decodes, in chunks, bodies whose model has one list of models or of raw JSON."""

    def __init__(self, kind: type[T]) -> None:
        self._name, item = _list_field(kind)
        self._head = _head_before(self._name)
        self._outside = msgspec.json.Decoder(kind)
        self._items = None if item is msgspec.Raw else msgspec.json.Decoder(list[item])  # type: ignore[valid-type]

    async def decode(self, pieces: Sequence[bytes], check: Callable[[bytes], None]) -> T | None:
        """Decodes the body chunk by chunk. Returns None if the body is invalid or cannot be split;
        the whole body is then decoded at once.

        A list of raw JSON has one element for each chunk, which the caller decodes."""
        splitter = Splitter(pieces, self._head)
        items: list[Any] = []
        try:
            async for chunk in in_slices(splitter.chunks()):
                await _check_chunk(chunk, check)
                items += [msgspec.Raw(chunk)] if self._items is None else self._items.decode(b"[%b]" % chunk)
            if splitter.outside is None:
                return None
            check(splitter.outside)
            body = self._outside.decode(splitter.outside)
        except (Problem, msgspec.DecodeError):
            return None
        return msgspec.structs.replace(body, **{self._name: items})  # type: ignore[type-var]


async def _check_chunk(chunk: bytes, check: Callable[[bytes], None]) -> None:
    """Checks a chunk. Encloses the chunk in two pairs of brackets, so that its items are nested as
    deeply as in the body.

    A chunk with a large item is checked in a thread, because the check may take 20 ms.
    """
    if len(chunk) > 4 * CHUNK_BYTES:
        await asyncio.to_thread(lambda: check(b"[[%b]]" % chunk))
    else:
        check(b"[[%b]]" % chunk)


class Splitter:
    """Splits the list of a body into chunks.

    `outside` is the body with an empty list. It is None until `chunks` has yielded all chunks. It
    stays None if the body cannot be split, for one of these reasons:

    - The body is invalid.
    - An item has more than MAX_ITEM_BYTES.
    - The members before the list have more than CHUNK_BYTES.
    """

    def __init__(self, pieces: Sequence[bytes], head: re.Pattern[bytes]) -> None:
        """`head` is a pattern that matches the body up to the first item of the list."""
        self.outside: bytes | None = None
        self._head = head
        self._pieces = iter(pieces)
        self._window = b""

    def chunks(self) -> Iterator[bytes]:
        """Yields the chunks. A chunk is the text of consecutive items of the list, separated by
        commas."""
        self._extend(4 * CHUNK_BYTES)
        head = self._head.match(self._window, 0, CHUNK_BYTES)
        before = self._take(head.end()) if head else b""
        while head and (end := self._end_of_chunk()):
            # Removes the whitespace around the chunk, because `strict_json` checks JSON faster if
            # it is exactly as an encoder writes it.
            yield self._take(end).strip(_WHITESPACE)
            if self._window.startswith(b"]"):
                self.outside = b"".join([before, self._window, *self._pieces])
                return
            self._take(1)

    def _take(self, size: int) -> bytes:
        taken, self._window = self._window[:size], self._window[size:]
        return taken

    def _extend(self, size: int) -> bool:
        """Adds pieces to the window until it has this size. Returns False if no piece is left."""
        pieces, length = [self._window], len(self._window)
        while length < size and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            length += len(piece)
        if len(pieces) > 1:
            self._window = b"".join(pieces)
        return len(pieces) > 1

    def _end_of_chunk(self) -> int | None:
        """Returns a position where an item ends, about CHUNK_BYTES after the start of the window.
        Returns None if it finds no such position."""
        self._extend(4 * CHUNK_BYTES)
        end = _guess_end(self._window) or _find_end(self._window)
        while end is None and self._extend(min(4 * len(self._window), MAX_ITEM_BYTES)):
            end = _find_end(self._window)
        return end


def _guess_end(window: bytes) -> int | None:
    """Guesses that an item ends at a `}` that is followed by `,{`. Returns the position after it.

    Such a `}` can also be inside an item, for example in its payload. So the guess is checked: if
    the bytes up to it cannot be decoded as a list, returns None. The guess and its check take a
    fifth of the time of `_find_end`.
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
    """Finds a position where an item ends, by matching item after item. Returns None if an item is
    incomplete."""
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
    """Returns the name of the model's list, and the type of its items."""
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else [field.type]
        for found in kinds:
            if isinstance(found, inspect.ListType) and isinstance(found.item_type, inspect.StructType):
                return field.name, found.item_type.cls
            if isinstance(found, inspect.ListType) and isinstance(found.item_type, inspect.RawType):
                return field.name, msgspec.Raw
    raise TypeError(f"{kind} has no list of models")


def _item_pattern(depth: int) -> bytes:
    """Returns a pattern for one item of a list. The pattern matches the text before the comma or
    closing bracket that follows the item.

    `depth` is the maximum nesting of brackets in the item.
    """
    inside = b""
    for _ in range(depth):
        inside = rb'(?:[^"\[\]{}]++|%b|[\[{]%b[\]}])*+' % (_STRING, inside)
    return rb'(?:[^"\[\]{},]++|%b|[\[{]%b[\]}])++' % (_STRING, inside)


_item = re.compile(_item_pattern(MAX_DEPTH), re.DOTALL)


def _head_before(name: str) -> re.Pattern[bytes]:
    """Returns a pattern for the start of an object, up to the first item of its list `name`.

    The repetition of members is greedy (`*`) and not possessive (`*+`). Python 3.11.2, the version
    of Debian 12, finds no match with a possessive repetition (python/cpython issue 100061).
    """
    quoted = b'"%b"' % name.encode()
    member = rb"\s*+(?!%b)%b\s*+:%b," % (quoted, _STRING, _item_pattern(1))
    return re.compile(rb"\s*+\{(?:%b)*\s*+%b\s*+:\s*+\[" % (member, quoted), re.DOTALL)
