"""Invalid and unusual input: docs/reliability/faults.md#d1 to docs/reliability/faults.md#d19.

`status` is the status that the catalogue demands. None: the value must be accepted and stored
exactly.
"""

import json
from typing import Any, NamedTuple


class Case(NamedTuple):
    row: str
    text: bytes
    status: int | None


def _deep(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * levels + closing * levels).encode()


def _wide(values: int) -> bytes:
    return b"[" + b",".join([b"0"] * (values - 1)) + b"]"


# Valid and invalid JSON values, sent as payload, result, checkpoint or details.
VALUES = [
    Case("D1 NUL in a value", rb'"a\u0000b"', 422),
    Case("D1 NUL in a key", rb'{"a\u0000": 1}', 422),
    Case("D1 NUL far down", rb'[[{"a": [{"b": "\u0000"}]}]]', 422),
    Case("D1 NUL after an escaped backslash", rb'"\\\u0000"', 422),
    Case("D1 the text of an escape is no NUL", rb'"\\u0000"', None),
    Case("D2 raw NUL in a string", b'"a\x00b"', 400),
    Case("D2 raw NUL between tokens", b"[1,\x002]", 400),
    Case("D3 lone high surrogate", rb'"\ud800"', 422),
    Case("D3 lone low surrogate", rb'"\udfff"', 422),
    Case("D3 surrogates in the wrong order", rb'"\ude00\ud83d"', 422),
    Case("D3 surrogate in a key", rb'{"\uDBFF": 1}', 422),
    Case("D3 high surrogate before a pair", rb'"\ud83d\ud83d\ude00"', 422),
    Case("D3 low surrogate after an escaped backslash", rb'"\\ud83d\ude00"', 422),
    Case("D3 a pair is a character", rb'"\ud83d\ude00"', None),
    Case("D3 the text of a surrogate", rb'"\\ud800"', None),
    Case("D4 invalid UTF-8", b'"\xff"', 400),
    Case("D4 overlong slash", b'"\xc0\xaf"', 400),
    Case("D4 overlong NUL", b'"\xc0\x80"', 400),
    Case("D4 surrogate in UTF-8", b'"\xed\xa0\x80"', 400),
    Case("D4 beyond Unicode", b'"\xf4\x90\x80\x80"', 400),
    Case("D4 cut in the middle of a character", b'"\xe2\x82"', 400),
    Case("D4 Latin-1", '"ö"'.encode("latin-1"), 400),
    Case("D6 NaN", b"NaN", 422),
    Case("D6 Infinity", b'{"a": [Infinity]}', 422),
    Case("D6 -Infinity", b"-Infinity", 422),
    Case("D6 nan", b"nan", 400),
    Case("D7 1e400", b"1e400", 422),
    Case("D7 -1e400", b"[-1E+400]", 422),
    Case("D8 exponent bomb", b"1e131071", 422),
    Case("D8 exponent of many digits", b"1e99999999999999999999", 422),
    Case("D8 many digits after the point", b"0." + b"1" * 5000, 422),
    Case("D9 5,000 digits", b"9" * 5000, 422),
    Case("D9 65 digits", b"-" + b"9" * 65, 422),
    Case("D10 30 digits", b"123456789012345678901234567890", None),
    Case("D10 64 digits", b"9" * 64, None),
    Case("D10 float of 40 digits", b"3.141592653589793238462643383279502884197", None),
    Case("D10 2^53 + 1", b"9007199254740993", None),
    Case("D10 2^64", b"[18446744073709551616, -18446744073709551617]", None),
    Case("D10 one, spelt as a float", b"[1.0, 1.00, 1e0, 1E+2, -0, -0.0]", None),
    Case("D10 the largest double", b"1.7976931348623157e308", None),
    Case("D10 the smallest double", b"5e-324", None),
    Case("D11 duplicate key", b'{"a": 1, "a": 2}', 422),
    Case("D11 duplicate key far down", b'[{"x": [{"a": 1, "b": 2, "a": 1}]}]', 422),
    Case("D11 duplicate key, spelt in two ways", rb'{"a": 1, "\u0061": 2}', 422),
    Case("D11 duplicate empty key", b'{"": 1, "": 2}', 422),
    Case("D12 depth 65", _deep(65), 422),
    Case("D12 depth 65 of objects", _deep(65, '{"a":', "}").replace(b":}", b":1}"), 422),
    Case("D12 depth 300", _deep(300), 422),
    Case("D12 depth 2,000", _deep(2000), 422),
    Case("D12 depth 100,000", _deep(100_000), 422),
    Case("D12 depth 50", _deep(50), None),
    Case("D12 brackets in a string are not depth", b'"' + b"[" * 1000 + b'"', None),
    Case("D13 10,001 values", _wide(10_001), 422),
    Case("D13 50,000 values", _wide(50_000), 422),
    Case("D13 9,000 values", _wide(9_000), None),
    Case("D14 more than 256 kB", b'"' + b"x" * (256 * 1024) + b'"', 413),
    Case("D14 255 kB", b'"' + b"x" * (255 * 1024) + b'"', None),
    Case("D15 text that looks like SQL", b'"\'; DROP TABLE jobs; --"', None),
    Case("D15 right to left", '"\u202eabc\u2066"'.encode(), None),
    Case("D17 control characters, escaped", rb'"\r\n\u001b[31m\b\f\t\u007f"', None),
    Case("D17 control characters, raw", b'"\n"', 400),
    Case("noncharacters", '"\uffff\ufdd0\U0010ffff"'.encode(), None),
    Case("line separators", '"\u2028\u2029\x7f"'.encode(), None),
    Case("a byte order mark inside", '"\ufeff"'.encode(), None),
    Case("combining and composed", '["e\u0301", "\u00e9"]'.encode(), None),
    Case("every JSON type", b'[null, true, false, 0, -1, 0.5, "", [], {}]', None),
    Case("odd keys", rb'{"": 1, " ": 2, "a/b~c": 3, "\\": 4, "\"": 5, "__proto__": 6, "constructor": {}}', None),
    Case("white space", b' {\n"a" :\t[ 1 ,2 ] }\r\n', None),
    Case("null", b"null", None),
    Case("false", b"false", None),
    Case("leading zero", b"01", 400),
    Case("plus sign", b"+1", 400),
    Case("bare point", b"1.", 400),
    Case("hexadecimal", b"0x10", 400),
    Case("single quotes", b"'a'", 400),
    Case("trailing comma", b"[1,]", 400),
    Case("comment", b"1 /* one */", 400),
    Case("unknown escape", rb'"\x41"', 400),
    Case("short escape", rb'"\u12"', 400),
    Case("undefined", b"undefined", 400),
]

# Complete bodies.
BODIES = [
    Case("D5 byte order mark", b"\xef\xbb\xbf{}", 400),
    Case("D5 UTF-16", "{}".encode("utf-16"), 400),
    Case("D5 UTF-16 without a mark", "{}".encode("utf-16-le"), 400),
    Case("D5 UTF-32", "{}".encode("utf-32-be"), 400),
    Case("D12 brackets without end", b"[" * 100_000, 422),
    Case("D12 objects without end", b'{"a":' * 100_000, 422),
    Case("D14 9 MB", b'{"a": "' + b"x" * 9_000_000 + b'"}', 413),
    Case("not JSON", b"hello", 400),
    Case("a form", b"job_type=test&queue=mail", 400),
    Case("cut off", b'{"job_type": "te', 400),
    Case("two values", b"{} {}", 400),
    Case("white space only", b"  \n", 400),
    Case("null", b"null", 422),
    Case("a list", b"[]", 422),
    Case("a number", b"1", 422),
    Case("a string", b'"job"', 422),
    Case("D11 duplicate field", b'{"reason": "a", "reason": "b"}', 422),
    Case("an unknown field", b'{"no_such_field": 1}', 422),
    Case("D10 an unknown field of many digits", b'{"x": ' + b"9" * 5000 + b"}", 422),
]

NAMES = {
    "empty": "",
    "NUL": "a\x00b",
    "right to left": "a\u202eb",
    "line break": "a\nb",
    "line break at the end": "a\n",
    "carriage return": "a\rb",
    "escape sequence": "\x1b[31mred",
    "path": "../../etc/passwd",
    "this folder": ".",
    "the folder above": "..",
    "SQL": "'; DROP TABLE jobs; --",
    "space": "a b",
    "not ASCII": "schlüssel",
    "wide digits": "１２３",
    "121 characters": "x" * 121,
    "10 kB": "x" * 10_240,
}

# The first and the last accepted instants, in several zones, and the nearest rejected ones.
FIRST_AND_LAST = [
    "1970-01-01T00:00:00Z",
    "1970-01-01T14:00:00+14:00",
    "9999-12-30T23:59:59.999999Z",
    "9999-12-31T13:59:59+14:00",
]
OUT_OF_RANGE = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "1969-12-31T23:59:59.999999Z",
    "1970-01-01T00:00:00+00:01",
    "9999-12-30T23:59:59.999999-00:01",
    "9999-12-31T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-23:59",
]
INSTANTS: list[Any] = [
    *OUT_OF_RANGE,
    "10000-01-01T00:00:00Z",
    "infinity",
    "-infinity",
    "now",
    "",
    "2026-11-16T00:00:00",
    "2026-11-16",
    "2026-02-30T00:00:00Z",
    "2026-11-16T25:00:00Z",
    "2026-11-16T00:00:00+99:00",
    -1,
    0,
    1e300,
    True,
    None,
]


def exact(text: str | bytes) -> Any:
    """Parses JSON, but keeps numbers as they are written.

    1, 1.0 and 1e0 differ, and a lost digit is noticed.
    """
    return json.loads(text, parse_int=lambda digits: ("number", digits), parse_float=lambda digits: ("number", digits))
