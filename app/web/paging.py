"""Lists come in pages: `limit` and an opaque `cursor`. There are no totals; counts live in stats."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from app.errors import ValidationFailed
from app.web.shapes import UNSET, UnsetType

T = TypeVar("T")
_cursor = msgspec.json.Decoder(dict[str, str])


class Paging(BaseModel):
    """The two parameters of every list. An unknown parameter is an error here too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(100, ge=1, le=1000, description="Most items in the answer: 1 to 1000, default 100.")
    cursor: str | None = Field(None, max_length=1000, description="`next_cursor` of the page before.")

    def after(self, name: str) -> str:
        """What the cursor says of where the last page ended; empty on the first page."""
        if self.cursor is None:
            return ""
        try:
            return _cursor.decode(urlsafe_b64decode(self.cursor))[name]
        except (ValueError, KeyError):
            raise ValidationFailed.at("/query/cursor", "not a cursor that we gave out") from None


Page = Annotated[Paging, Query()]


def page_of(found: list[T], limit: int, place: Callable[[T], dict[str, str]]) -> tuple[list[T], str | UnsetType]:
    """Queries ask for one more than the limit: if it came, there is a next page, and it begins after the last item of this one."""
    items = found[:limit]
    more = len(found) > limit
    return items, (urlsafe_b64encode(msgspec.json.encode(place(items[-1]))).decode() if more else UNSET)
