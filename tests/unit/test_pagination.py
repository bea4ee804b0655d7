"""Pagination: page limits, byte limits and cursors."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import ValidationError
from starlette.types import Message

from app.errors import ValidationFailed
from app.http.pagination import EncodedPage, PageParams, encode_page
from tests.table import table

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)


def cursor_members(item: str) -> dict[str, str]:
    return {"id": item}


def page(rows: list[str], *, limit: int = 2, max_bytes: int = 1000, total: int | None = None) -> EncodedPage[str]:
    return asyncio.run(encode_page(rows, str, cursor_members, limit=limit, max_bytes=max_bytes, total=total))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=100))
def test_cursor_holds_the_last_item_of_its_page(last: str) -> None:
    cursor = page([last, "more"], limit=1).next_cursor
    assert isinstance(cursor, str)
    assert PageParams(cursor=cursor, limit=1).after("id") == last


def test_page_ends_at_item_limit_or_byte_limit() -> None:
    """An item of one letter takes three bytes and a comma."""
    cases: dict[str, tuple[EncodedPage[str], list[str], bool]] = {
        "all items": (page(["a", "b"]), ["a", "b"], False),
        "no items": (page([]), [], False),
        "one item too many": (page(["a", "b", "c"]), ["a", "b"], True),
        "exactly enough bytes": (page(["a", "b"], max_bytes=8), ["a", "b"], False),
        "one byte too few": (page(["a", "b"], max_bytes=7), ["a"], True),
        "no item fits": (page(["a", "b"], max_bytes=1), ["a"], True),
        "the only item does not fit": (page(["a"], max_bytes=1), ["a"], False),
        "the database found more": (page(["a"], total=2), ["a"], True),
    }
    mismatches = {
        name: page
        for name, (page, items, has_more) in cases.items()
        if (page.items, page.next_cursor is not UNSET) != (items, has_more)
    }
    assert mismatches == {}


def test_response_contains_items_and_cursor() -> None:
    last, first = page(["a", "b"]), page(["a", "b", "c"])
    assert json.loads(bytes(last.response().body)) == {"items": ["a", "b"]}
    assert json.loads(bytes(first.response().body)) == {"items": ["a", "b"], "next_cursor": first.next_cursor}


def test_page_without_cursor_starts_at_the_beginning() -> None:
    assert PageParams(limit=1, cursor=None).after("id") == ""


@table("forged", ["", "a", "!!", "e30=", "bnVsbA==", "eyJpZCI6IDF9", "ö", "/w==", "eyJ4Ijoi"])
def test_forged_cursor_is_rejected(forged: str) -> None:
    with pytest.raises(ValidationFailed) as rejected:
        PageParams(limit=1, cursor=forged).after("id")
    assert rejected.value.faults[0].pointer == "/query/cursor"


@table("limit", [0, -1, 1001])
def test_limit_out_of_bounds_is_rejected(limit: int) -> None:
    with pytest.raises(ValidationError):
        PageParams(limit=limit, cursor=None)


@pytest.mark.parametrize("size", [10, 100, 50_000, 300_000])
def test_large_response_is_sent_in_pieces_and_has_its_length(size: int) -> None:
    response, sent = page(["x" * size] * 9 + ["more"], limit=9, max_bytes=10**8).response(), []

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(response({"type": "http"}, pytest.fail, send))
    body = b"".join(message["body"] for message in sent[1:])
    assert json.loads(body)["items"] == ["x" * size] * 9
    assert (b"content-length", b"%d" % len(body)) in response.raw_headers
    assert max(len(message["body"]) for message in sent[1:]) < 2 * size + 64 * 1024
