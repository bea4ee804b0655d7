"""Decodes bodies as UTF-8, and describes JSON syntax errors to callers."""

from json import JSONDecodeError

from app.errors import MalformedJson, UnsupportedMediaType

_GZIP = b"\x1f\x8b"  # the first bytes of every gzip file; they are never valid UTF-8
# Maps each message of Python's JSON parser to the message for callers.
_SYNTAX_ERRORS = {
    "Expecting value": "a value is expected",
    "Expecting property name enclosed in double quotes": "a member name in double quotes is expected",
    "Expecting ',' delimiter": "a comma or a closing bracket is expected",
    "Expecting ':' delimiter": "a colon is expected after the member name",
    "Extra data": "the body continues after its JSON value",
    "Illegal trailing comma before end of object": "a member is expected after the comma",
    "Illegal trailing comma before end of array": "an item is expected after the comma",
    "Invalid \\escape": 'a backslash must be followed by one of " \\ / b f n r t u',
    "Invalid \\uXXXX escape": "\\u must be followed by four hexadecimal digits",
    "Invalid control character at": "a control character in a string must be escaped",
    "Unterminated string starting at": "the string that starts here has no closing quote",
}


def decode_utf8(data: bytes) -> str:
    """Decodes a body as UTF-8. Raises MalformedJson (400) if the body is not UTF-8, or if it has a
    byte order mark or a NUL byte, which RFC 8259 does not allow.

    Raises UnsupportedMediaType (415) for gzip, which a client may send without a Content-Encoding.
    """
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        if data.startswith(_GZIP):
            raise UnsupportedMediaType("the body is compressed with gzip: send it as plain JSON") from error
        raise MalformedJson(f"the body is not UTF-8 (byte {error.start})") from error
    if decoded.startswith("\ufeff") or "\x00" in decoded:
        raise MalformedJson("the body contains a byte order mark or a NUL byte")
    return decoded


def malformed(error: JSONDecodeError) -> MalformedJson:
    """Converts an error of Python's JSON parser to a problem that states the line and column of the
    error."""
    reason = _SYNTAX_ERRORS.get(error.msg, "the body is not JSON")
    return MalformedJson(f"{reason} (line {error.lineno}, column {error.colno})")
