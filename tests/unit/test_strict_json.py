"""What is taken as JSON, and what is refused, where and with which status."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import MalformedJson, ValidationFailed
from app.http import strict_json
from tests.contract.hostile import BODIES, VALUES, Case

# The broker of other tests lives in this process and rolls dice too: hypothesis takes that for ours.
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


# The corpus, and numbers and escapes that are spelt in an odd way or stand at a border; put together in any order.
odd = [
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
odd += [r'"\u00e9"', r'"\u00E9"', r'"\/"', '"[[{,"', "[" * 63 + "]" * 63, "[" * 64 + "]" * 64, '"' + "9" * 65 + '"']
corpus = [case.text.decode() for case in VALUES if len(case.text) < 5000 and case.row[:2] != "D4"]
atoms = st.sampled_from(corpus) | st.sampled_from(odd) | st.builds(json.dumps, texts, ensure_ascii=st.booleans())
keys = st.sampled_from(['"a"', '"a"', '"b"', '"\\u0061"', '""', '"\\ud800"', "a"])


def spelt(comma: str, colon: str) -> st.SearchStrategy[str]:
    """Texts with these separators throughout, as one encoder writes them."""

    def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.lists(inner, max_size=4).map(lambda parts: f"[{comma.join(parts)}]")

    def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(keys, inner).map(colon.join)
        return st.lists(pairs, max_size=4).map(lambda parts: f"{{{comma.join(parts)}}}")

    return st.recursive(atoms, lambda inner: lists(inner) | objects(inner), max_leaves=8)


@settings(max_examples=2000)
@given(spelt(",", ":") | spelt(", ", ": ") | spelt(",", ": "))
def test_a_look_finds_nothing_good_that_a_full_scan_refuses(text: str) -> None:
    if strict_json._is_plain(text):
        strict_json._scan_fully(text, nul_in_text=False)


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_a_batch_as_clients_send_it_needs_no_full_scan(ascii_only: bool, separators: tuple[str, str]) -> None:
    batch = {
        "jobs": [
            {"job_type": "test", "payload": {"text": "x" * 200, "n": n, "half": 0.5, "more": [None, True]}}
            for n in range(1000)
        ]
    }
    assert strict_json._is_plain(json.dumps(batch, ensure_ascii=ascii_only, separators=separators))


def test_a_batch_of_python_in_another_language_needs_no_full_scan() -> None:
    assert strict_json._is_plain(json.dumps({"jobs": [{"job_type": "test", "payload": "schön 🙂"}] * 1000}))


@pytest.mark.parametrize(
    "deepest", ["[" * 64 + "]" * 64, '{"a":' * 63 + "{}" + "}" * 63, "[[]," * 63 + "[]" + "]" * 63]
)
def test_a_look_sees_how_deep_a_text_is(deepest: str) -> None:
    assert strict_json._is_plain(deepest)
    assert not strict_json._is_plain(f"[{deepest}]")


def test_brackets_in_strings_hide_no_depth() -> None:
    """As if each list ended before the next begins."""
    deep = '["]",' * 65 + '"' + "[" * 65 + '"' + "]" * 65
    assert strict_json._is_shallow(json.loads(deep[5:-1]), deep[5:-1].encode())
    assert not strict_json._is_shallow(json.loads(deep), deep.encode())


def test_brackets_in_strings_are_not_depth() -> None:
    assert strict_json._is_plain(json.dumps(["[" * 1000, {"{" * 1000: "}" * 1000}]))


def test_of_very_many_values_each_is_read_beside_others() -> None:
    """A look at all of them at once would keep every thread from running."""
    assert not strict_json._is_plain(json.dumps([0] * 100_000))
    strict_json.check(json.dumps([0] * 100_000), max_nodes=1_000_000)
