"""Divides lists into pages, with the query parameters `limit` and `cursor`.

A cursor is opaque to callers. A page has no total; the statistics of a queue have counts.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec
from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import ValidationFailed
from app.http.bodies import encode
from app.http.large_response import JsonList, list_response
from app.http.schema_types import UNSET, IntegerParameter, UnsetType
from app.slices import in_slices

R = TypeVar("R")
T = TypeVar("T")
_cursor = msgspec.json.Decoder(dict[str, str])


class PageParams(BaseModel):
    """The two query parameters of every list. An unknown parameter is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: IntegerParameter = Field(
        100,
        ge=1,
        le=1000,
        description="Maximum number of items in a page: 1 to 1000, default 100. "
        "A page of large items is shorter: see `max_list_bytes` in `/limits`.",
    )
    cursor: str | None = Field(None, max_length=1000, description="`next_cursor` of the previous page.")

    def after(self, name: str) -> str:
        """Returns the member `name` of the cursor, which is a value of the last item of the
        previous page. Returns an empty text for the first page."""
        if self.cursor is None:
            return ""
        try:
            last = _cursor.decode(urlsafe_b64decode(self.cursor))[name]
        except (ValueError, KeyError):
            last = "\0"
        if "\0" in last:  # no valid cursor contains NUL, because text in Postgres cannot
            raise ValidationFailed.at("/query/cursor", "cursor must be the next_cursor of an earlier page")
        return last


Page = Annotated[PageParams, Query()]


class EncodedPage(NamedTuple, Generic[T]):
    """A page of a list: its items, their JSON, and the cursor of the next page."""

    items: list[T]
    encoded: list[bytes]
    next_cursor: str | UnsetType

    def response(self) -> Response:
        tail = b"" if self.next_cursor is UNSET else b',"next_cursor":' + msgspec.json.encode(self.next_cursor)
        return list_response(JsonList(b'{"items":[', self.encoded, b"]%b}\n" % tail))


async def encode_page(
    rows: Sequence[R],
    to_item: Callable[[R], T],
    cursor_of: Callable[[T], dict[str, str]],
    *,
    limit: int,
    max_bytes: int,
    total: int | None = None,
) -> EncodedPage[T]:
    """Encodes the first rows, as many as fit into `max_bytes` of JSON.

    Encodes at least one row, if there is any, and at most `limit` rows.

    The query must read one row more than the limit. If there are more rows than encoded items,
    there is a next page, which begins after the last encoded item. If `rows` has only some of the
    rows that the query found, pass the number of all rows found as `total`.
    """
    items: list[T] = []
    encoded: list[bytes] = []
    size = 0
    async for row in in_slices(rows[:limit]):
        item = to_item(row)
        data = encode(item)
        size += len(data) + 1
        if size > max_bytes and items:
            break
        items.append(item)
        encoded.append(data)
    has_more = len(items) < (len(rows) if total is None else total)
    return EncodedPage(items, encoded, _encode_cursor(cursor_of(items[-1])) if has_more else UNSET)


def _encode_cursor(members: dict[str, str]) -> str:
    return urlsafe_b64encode(msgspec.json.encode(members)).decode()
