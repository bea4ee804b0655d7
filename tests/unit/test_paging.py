"""Pages and cursors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import ValidationError

from app.errors import ValidationFailed
from app.web.paging import Paging, page_of

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")


def place(item: str) -> dict[str, str]:
    return {"id": item}


@given(st.text(max_size=100))
def test_a_cursor_says_where_the_page_ended(last: str) -> None:
    _, cursor = page_of([last, "more"], 1, place)
    assert isinstance(cursor, str)
    assert Paging(cursor=cursor, limit=1).after("id") == last


def test_the_last_page_has_no_cursor() -> None:
    assert page_of(["a", "b"], 2, place) == (["a", "b"], UNSET)
    assert page_of([], 2, place) == ([], UNSET)


def test_the_item_too_many_is_not_shown() -> None:
    items, cursor = page_of(["a", "b", "c"], 2, place)
    assert items == ["a", "b"]
    assert cursor is not UNSET


def test_the_first_page_is_after_nothing() -> None:
    assert Paging(limit=1, cursor=None).after("id") == ""


@pytest.mark.parametrize("forged", ["", "a", "!!", "e30=", "bnVsbA==", "eyJpZCI6IDF9", "ö", "/w==", "eyJ4Ijoi"])
def test_a_forged_cursor_is_refused(forged: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Paging(limit=1, cursor=forged).after("id")
    assert refused.value.faults[0].pointer == "/query/cursor"


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    with pytest.raises(ValidationError):
        Paging(limit=limit, cursor=None)
