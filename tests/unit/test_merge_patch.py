"""JSON merge patch on JSON text (RFC 7396): members outside the patch keep their exact spelling."""

import json

import msgspec

from app.dead_letters.merge_patch import merge_patch
from app.http.schema_types import Raw
from tests.table import table

_members = msgspec.json.Decoder(dict[str, Raw])


def merge(text: str, patch: str) -> str:
    return merge_patch(text, _members.decode(patch))


# The examples of RFC 7396, appendix A, whose patch is an object (the API accepts only objects).
@table(
    ("text", "patch", "result"),
    [
        ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
        ('{"a":"b"}', '{"a":null}', "{}"),
        ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
        ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
        ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
        ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
        ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
    ],
)
def test_merges_like_rfc_7396(text: str, patch: str, result: str) -> None:
    assert json.loads(merge(text, patch)) == json.loads(result)


def test_numbers_of_document_and_patch_keep_their_digits() -> None:
    document = '{"id":12345678901234567890123,"rate":1.10,"deep":{"pi":3.14159265358979323846}}'
    assert merge(document, '{"new":1.00,"deep":{"e":2.71828182845904523536}}') == (
        '{"id":12345678901234567890123,"rate":1.10,"deep":{"pi":3.14159265358979323846,"e":2.71828182845904523536},"new":1.00}'
    )


def test_unpatched_members_keep_their_spelling() -> None:
    assert merge(r'{"a": [1,  2], "b": "\u00e9"}', '{"c": 1}') == r'{"a":[1,  2],"b":"\u00e9","c":1}'


def test_empty_patch_changes_no_value() -> None:
    assert json.loads(merge('{"a": {"b": [null]}}', "{}")) == {"a": {"b": [None]}}


@table("payload", ["null", "1", '"x"', "[]"])
def test_payload_that_is_not_an_object_becomes_one(payload: str) -> None:
    assert merge(payload, '{"a": 1}') == '{"a":1}'
