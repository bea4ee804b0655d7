"""Pages and cursors."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import ValidationError

from app.errors import ValidationFailed
from app.http.pagination import EncodedPage, PageParams, encode_page

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)


def place(item: str) -> dict[str, str]:
    return {"id": item}


def page(found: list[str], *, limit: int = 2, max_bytes: int = 1000, total: int | None = None) -> EncodedPage[str]:
    return asyncio.run(encode_page(found, str, place, limit=limit, max_bytes=max_bytes, total=total))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=100))
def test_a_cursor_says_where_the_page_ended(last: str) -> None:
    cursor = page([last, "more"], limit=1).next_cursor
    assert isinstance(cursor, str)
    assert PageParams(cursor=cursor, limit=1).after("id") == last


def test_a_page_ends_at_its_limit_or_where_its_bytes_would_be_too_many() -> None:
    """An item of one letter is three bytes and a comma."""
    cases: dict[str, tuple[EncodedPage[str], list[str], bool]] = {
        "all there are": (page(["a", "b"]), ["a", "b"], False),
        "nothing": (page([]), [], False),
        "one too many": (page(["a", "b", "c"]), ["a", "b"], True),
        "just enough bytes": (page(["a", "b"], max_bytes=8), ["a", "b"], False),
        "one byte too few": (page(["a", "b"], max_bytes=7), ["a"], True),
        "not one fits": (page(["a", "b"], max_bytes=1), ["a"], True),
        "the only one does not fit": (page(["a"], max_bytes=1), ["a"], False),
        "the database found more": (page(["a"], total=2), ["a"], True),
    }
    wrong = {
        name: page
        for name, (page, items, more) in cases.items()
        if (page.items, page.next_cursor is not UNSET) != (items, more)
    }
    assert wrong == {}


def test_a_page_is_the_json_of_its_items_and_its_cursor() -> None:
    last, first = page(["a", "b"]), page(["a", "b", "c"])
    assert json.loads(bytes(last.response().body)) == {"items": ["a", "b"]}
    assert json.loads(bytes(first.response().body)) == {"items": ["a", "b"], "next_cursor": first.next_cursor}


def test_the_first_page_is_after_nothing() -> None:
    assert PageParams(limit=1, cursor=None).after("id") == ""


@pytest.mark.parametrize("forged", ["", "a", "!!", "e30=", "bnVsbA==", "eyJpZCI6IDF9", "ö", "/w==", "eyJ4Ijoi"])
def test_a_forged_cursor_is_refused(forged: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        PageParams(limit=1, cursor=forged).after("id")
    assert refused.value.faults[0].pointer == "/query/cursor"


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    with pytest.raises(ValidationError):
        PageParams(limit=limit, cursor=None)
