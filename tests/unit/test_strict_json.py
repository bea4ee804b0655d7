"""Strict JSON: which texts are accepted, and which are rejected, with pointer and status."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import MalformedJson, ValidationFailed
from app.http import strict_json
from tests.contract.hostile_cases import BODIES, VALUES, Case
from tests.table import table

# A broker of other tests runs in this process and uses `random` too; hypothesis would blame these
# tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def read(body: bytes) -> object:
    """Checks and parses a body like that of a request."""
    strict_json.check(body)
    return json.loads(body)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_accepts_output_of_any_encoder(value: object, ascii_only: bool, indent: int | None) -> None:
    assert read(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@given(st.text(alphabet='[]{}":,\\u0dDcC8a1e-. \nNtrufalsn', max_size=60))
def test_accepted_text_is_json_without_nul_and_lone_surrogates(text: str) -> None:
    try:
        strict_json.check(text.encode())
    except (MalformedJson, ValidationFailed):
        return
    encoded = json.dumps(json.loads(text, parse_constant=pytest.fail), ensure_ascii=False)
    assert "\x00" not in encoded
    encoded.encode()  # fails on a lone surrogate


@given(st.lists(st.sampled_from(["\\\\", "\\u0000", "\\ud83d", "\\ude00", "\\n", "u0000", "ud83d", "x"]), max_size=8))
def test_escapes_are_interpreted_like_the_parser_does(parts: list[str]) -> None:
    text = '"' + "".join(parts) + '"'
    parsed = json.loads(text)
    is_invalid = "\x00" in parsed or any("\ud800" <= character <= "\udfff" for character in parsed)
    if is_invalid:
        with pytest.raises(ValidationFailed):
            strict_json.check(text.encode())
    else:
        strict_json.check(text.encode())


@table("case", [case for case in VALUES if case.status != 413])
def test_accepts_or_rejects_value_of_the_hostile_corpus(case: Case) -> None:
    body = b'{"a": [' + case.text + b"]}"
    if case.status is None:
        read(body)
    else:
        with pytest.raises(MalformedJson if case.status == 400 else ValidationFailed):
            read(body)


@table("case", [case for case in BODIES if case.status == 400])
def test_body_that_is_not_json_is_malformed(case: Case) -> None:
    with pytest.raises(MalformedJson):
        read(case.text)


@table(
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
def test_error_has_pointer_of_the_value(text: str, pointer: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        strict_json.check(text.encode())
    assert [(fault.pointer, fault.code) for fault in refused.value.faults] == [(pointer, "unsafe_json")]


def test_nul_is_allowed_in_fields_that_strip_it_later() -> None:
    strict_json.check(rb'{"message": "\u0000"}', allow_nul=True)
    fault = strict_json.nul_fault(r'{"a": "\u0000"}', "/error/details")
    assert fault is not None
    assert fault.pointer == "/error/details"


def test_payload_has_its_own_value_limit_in_a_large_body() -> None:
    wide = json.dumps([0] * strict_json.MAX_VALUES)
    strict_json.check(wide.encode(), max_values=2 * strict_json.MAX_VALUES)
    assert strict_json.value_count_fault(wide.encode(), "/payload") is not None


def test_commas_and_brackets_in_strings_are_not_counted() -> None:
    strict_json.check(json.dumps("[,{" * strict_json.MAX_VALUES).encode())
    assert strict_json.value_count_fault(json.dumps("[,{" * strict_json.MAX_VALUES).encode(), "/payload") is None


@given(values, st.booleans(), st.integers(1, 20))
def test_strings_are_removed_wherever_a_window_ends(value: object, ascii_only: bool, window: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_WINDOW", window)
        assert strict_json._outside_strings(text) == re.sub(r'"(?:[^"\\]|\\.)*"', "", text)


# The hostile corpus, and numbers and escapes with unusual spelling or at a limit, in any
# combination.
odd_texts = [
    "1.00",
    "1E+5",
    "1e16",
    "1e+16",
    "2.5e-324",
    "9" * 63,
    "-" + "9" * 63,
    "-" + "9" * 64,
    "3." + "1" * 62,
    "3." + "1" * 63,
]
odd_texts += [
    r'"\u00e9"',
    r'"\u00E9"',
    r'"\/"',
    '"[[{,"',
    "[" * 63 + "]" * 63,
    "[" * 64 + "]" * 64,
    '"' + "9" * 65 + '"',
]
corpus = [case.text.decode() for case in VALUES if len(case.text) < 5000 and case.row[:2] != "D4"]
atoms = st.sampled_from(corpus) | st.sampled_from(odd_texts) | st.builds(json.dumps, texts, ensure_ascii=st.booleans())
keys = st.sampled_from(['"a"', '"a"', '"b"', '"\\u0061"', '""', '"\\ud800"', "a"])


def documents(comma: str, colon: str) -> st.SearchStrategy[str]:
    """Generates texts that use these separators throughout, like one encoder does."""

    def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.lists(inner, max_size=4).map(lambda parts: f"[{comma.join(parts)}]")

    def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(keys, inner).map(colon.join)
        return st.lists(pairs, max_size=4).map(lambda parts: f"{{{comma.join(parts)}}}")

    return st.recursive(atoms, lambda inner: lists(inner) | objects(inner), max_leaves=8)


@pytest.mark.slow
@settings(max_examples=2000)
@given(documents(",", ":") | documents(", ", ": ") | documents(",", ": "))
def test_fast_check_accepts_nothing_that_full_scan_rejects(text: str) -> None:
    if strict_json._is_plain(text.encode()):
        strict_json._scan_fully(text, allow_nul=False)


@table("ascii_only", [True, False])
@table("separators", [(", ", ": "), (",", ":")])
def test_typical_batch_needs_no_full_scan(ascii_only: bool, separators: tuple[str, str]) -> None:
    batch = {
        "jobs": [
            {"job_type": "test", "payload": {"text": "x" * 200, "n": n, "half": 0.5, "more": [None, True]}}
            for n in range(1000)
        ]
    }
    assert strict_json._is_plain(json.dumps(batch, ensure_ascii=ascii_only, separators=separators).encode())


def test_batch_with_escaped_unicode_needs_no_full_scan() -> None:
    assert strict_json._is_plain(json.dumps({"jobs": [{"job_type": "test", "payload": "schön 🙂"}] * 1000}).encode())


@table("deepest", ["[" * 64 + "]" * 64, '{"a":' * 63 + "{}" + "}" * 63, "[[]," * 63 + "[]" + "]" * 63])
def test_fast_check_measures_nesting_depth(deepest: str) -> None:
    assert strict_json._is_plain(deepest.encode())
    assert not strict_json._is_plain(f"[{deepest}]".encode())


def test_brackets_in_strings_do_not_hide_nesting() -> None:
    """Without strings, the brackets look as if each list ended before the next one begins."""
    deep = '["]",' * 65 + '"' + "[" * 65 + '"' + "]" * 65
    assert strict_json._is_shallow(json.loads(deep[5:-1]), deep[5:-1].encode())
    assert not strict_json._is_shallow(json.loads(deep), deep.encode())


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    assert strict_json._is_plain(json.dumps(["[" * 1000, {"{" * 1000: "}" * 1000}]).encode())


def test_large_texts_skip_the_fast_check() -> None:
    """The fast check of 100,000 values in one call would block all other threads."""
    assert not strict_json._is_plain(json.dumps([0] * 100_000).encode())
    strict_json.check(json.dumps([0] * 100_000).encode(), max_values=1_000_000)
