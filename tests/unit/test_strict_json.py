"""What is taken as JSON, and what is refused, where and with which status."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import MalformedJson, ValidationFailed
from app.web import strict_json
from tests.contract.hostile import BODIES, VALUES, Case

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def read(body: bytes) -> object:
    """As a request is: checked, then parsed by whoever wants to."""
    text = strict_json.text(body)
    strict_json.check(text)
    return json.loads(text)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_any_encoder_writes_is_taken(value: object, ascii_only: bool, indent: int | None) -> None:
    assert read(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@given(st.text(alphabet='[]{}":,\\u0dDcC8a1e-. \nNtrufalsn', max_size=60))
def test_what_is_taken_is_json_and_what_is_not_json_is_not_taken(text: str) -> None:
    try:
        strict_json.check(text)
    except (MalformedJson, ValidationFailed):
        return
    again = json.dumps(json.loads(text, parse_constant=pytest.fail), ensure_ascii=False)
    assert "\x00" not in again
    again.encode()  # a lone surrogate cannot be


@given(st.lists(st.sampled_from(["\\\\", "\\u0000", "\\ud83d", "\\ude00", "\\n", "u0000", "ud83d", "x"]), max_size=8))
def test_escapes_are_read_as_the_parser_reads_them(parts: list[str]) -> None:
    text = '"' + "".join(parts) + '"'
    meant = json.loads(text)
    bad = "\x00" in meant or any("\ud800" <= character <= "\udfff" for character in meant)
    if bad:
        with pytest.raises(ValidationFailed):
            strict_json.check(text)
    else:
        strict_json.check(text)


@pytest.mark.parametrize("case", [case for case in VALUES if case.status != 413], ids=lambda case: case.row)
def test_a_value_is_judged_as_its_row_says(case: Case) -> None:
    body = b'{"a": [' + case.text + b"]}"
    if case.status is None:
        read(body)
    else:
        with pytest.raises(MalformedJson if case.status == 400 else ValidationFailed):
            read(body)


@pytest.mark.parametrize("case", [case for case in BODIES if case.status == 400], ids=lambda case: case.row)
def test_what_is_not_json_is_malformed(case: Case) -> None:
    with pytest.raises(MalformedJson):
        read(case.text)


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("NaN", ""),
        ('{"a": NaN}', "/a"),
        ('{"a": [1, {"b": Infinity}]}', "/a/1/b"),
        ('{"a/b": {"c~d": 1e400}}', "/a~1b/c~0d"),
        ('{"a": {"b": 1, "b": 2}}', "/a"),
        ('{"a": 1, "a": 2}', ""),
        ('{"a": ["x", "\\u0000"]}', "/a/1"),
        ('{"a": {"\\u0000": 1}}', "/a"),
        ('{"a": {"b": "\\ud800"}}', "/a/b"),
        ('[0, "\\\\ud83d\\ude00"]', "/1"),
        ('{"a": [' + "9" * 65 + "]}", "/a/0"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "/a" + "/0" * 63),
    ],
)
def test_a_refusal_points_at_the_value(text: str, pointer: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        strict_json.check(text)
    assert [(fault.pointer, fault.code) for fault in refused.value.faults] == [(pointer, "unsafe_json")]


def test_nul_may_be_let_through_where_it_is_stripped_later() -> None:
    strict_json.check(r'{"message": "\u0000"}', nul_in_text=True)
    with pytest.raises(ValidationFailed) as refused:
        strict_json.check_no_nul(r'{"a": "\u0000"}', "/error/details")
    assert refused.value.faults[0].pointer == "/error/details"


def test_a_payload_has_a_cap_of_its_own_in_a_large_body() -> None:
    wide = json.dumps([0] * strict_json.MAX_NODES)
    strict_json.check(wide, max_nodes=2 * strict_json.MAX_NODES)
    with pytest.raises(ValidationFailed):
        strict_json.check_nodes(wide.encode(), "/payload")


def test_commas_and_brackets_in_strings_are_not_counted() -> None:
    strict_json.check(json.dumps("[,{" * strict_json.MAX_NODES))
    strict_json.check_nodes(json.dumps("[,{" * strict_json.MAX_NODES).encode(), "/payload")
