"""Ambiguous requests, which two servers could read differently, and similar unambiguous ones.

Request smuggling: docs/reliability/faults.md#a23.
"""

_POST = b"POST /jobs/cancel HTTP/1.1\r\nHost: test\r\n"
_GET = b"GET /livez HTTP/1.1\r\nHost: test\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


def _content_length(value: bytes) -> bytes:
    return _POST + b"Content-Length: " + value + b"\r\n\r\n{}"


def _transfer_encoding(value: bytes) -> bytes:
    return _POST + b"Transfer-Encoding:" + value + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


def _header(line: bytes) -> bytes:
    return _GET + line + b"\r\n\r\n"


# The broker answers each with 400 and closes the connection, whatever follows.
REJECTED = {
    "length and coding": _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": _POST + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
    "the same length twice": _POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": _content_length(b"2, 2"),
    "length with a plus": _content_length(b"+2"),
    "length with a minus": _content_length(b"-2"),
    "hexadecimal length": _content_length(b"0x2"),
    "length with an underscore": _content_length(b"0_2"),
    "two numbers as length": _content_length(b"1 1"),
    "no length": _content_length(b""),
    "a length that overflows": _content_length(b"99999999999999999999999"),
    "xchunked": _transfer_encoding(b" xchunked"),
    "gzip, then chunked": _transfer_encoding(b" gzip, chunked"),
    "chunked, then gzip": _transfer_encoding(b" chunked, gzip"),
    "chunked, then identity": _transfer_encoding(b" chunked, identity"),
    "chunked twice": _transfer_encoding(b" chunked, chunked"),
    "two codings": _transfer_encoding(b" chunked\r\nTransfer-Encoding: identity"),
    "identity": _transfer_encoding(b" identity"),
    "no coding": _transfer_encoding(b""),
    "vertical tab before the coding": _transfer_encoding(b" \x0bchunked"),
    "coding in quotes": _transfer_encoding(b' "chunked"'),
    "folded coding": _transfer_encoding(b"\r\n chunked"),
    "space before the colon": _POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "coding in HTTP/1.0": b"POST /jobs/cancel HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "lines that end with LF": b"GET /livez HTTP/1.1\nHost: test\n\n",
    "one line that ends with LF": _header(b"X-One: a\nX-Two: b"),
    "one line that ends with CR": _header(b"X-One: a\rX-Two: b"),
    "LF instead of the empty line": _GET + b"\n",
    "folded header": _header(b"X-One: a\r\n b"),
    "folded first line": b"GET /livez HTTP/1.1\r\n X-One: a\r\nHost: test\r\n\r\n",
    "NUL in a value": _header(b"X-One: a\x00b"),
    "NUL in a name": _header(b"X-\x00One: a"),
    "control character in a value": _header(b"X-One: a\x01b"),
    "header without a colon": _header(b"X-One"),
    "header without a name": _header(b": a"),
    "space in a name": _header(b"X One: a"),
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": _header(b"Host: other"),
    "the same host twice": _header(b"Host: test"),
    "two hosts in HTTP/1.0": b"GET /livez HTTP/1.0\r\nHost: test\r\nHost: other\r\n\r\n",
    "two API keys": _header(b"Authorization: Bearer a\r\nAuthorization: Bearer b"),
    "the same API key twice": _header(b"Authorization: Bearer a\r\nauthorization: Bearer a"),
    "two idempotency keys": _header(b"Idempotency-Key: a\r\nX-One: a\r\nIdempotency-Key: b"),
    "the same idempotency key twice": _header(b"Idempotency-Key: a\r\nIdempotency-Key: a"),
    "two hosts in one": b"GET /livez HTTP/1.1\r\nHost: test, other\r\n\r\n",
    "user in the host": b"GET /livez HTTP/1.1\r\nHost: test@other\r\n\r\n",
    "another host in the target": b"GET http://other/livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "fragment in the target": b"GET /livez#a HTTP/1.1\r\nHost: test\r\n\r\n",
    "space in the target": b"GET /livez a HTTP/1.1\r\nHost: test\r\n\r\n",
    "NUL in the target": b"GET /livez\x00 HTTP/1.1\r\nHost: test\r\n\r\n",
    "no path": b"GET livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT to a host": b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT to a path": b"CONNECT /x HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT to a route": b"CONNECT /livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT with the host in the target": b"CONNECT http://test/livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "CONNECT with a body": b"CONNECT /x HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{}",
    "CONNECT with chunks": b"CONNECT /x HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n",
    "CONNECT with an upgrade": b"CONNECT /x HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "CONNECT in HTTP/1.0": b"CONNECT /x HTTP/1.0\r\n\r\n",
    "CONNECT in lower case": b"connect /x HTTP/1.1\r\nHost: test\r\n\r\n",
    "unknown method": b"FETCH /livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "PRI in HTTP/1.1": b"PRI /livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "chunk size that overflows": _CHUNKED + b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "chunk size with a minus": _CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    "chunk size with a plus": _CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n",
    "chunk size with 0x": _CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "chunk size with a space": _CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    "no chunk size": _CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
    "chunk lines that end with LF": _CHUNKED + b"2\n{}\n0\n\n",
    "chunk extension that ends with LF": _CHUNKED + b"2;a\n{}\r\n0\r\n\r\n",
    "chunk longer than it says": _CHUNKED + b"2\r\n{} \r\n0\r\n\r\n",
    "length in a trailer": _CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
    "HTTP/1.2": b"GET /livez HTTP/1.2\r\nHost: test\r\n\r\n",
    "HTTP/2.0": b"GET /livez HTTP/2.0\r\nHost: test\r\n\r\n",
    "HTTP/0.9": b"GET /livez HTTP/0.9\r\nHost: test\r\n\r\n",
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}

# The broker answers each with 200, and the next request too.
ACCEPTED = {
    "a path": _GET + b"\r\n",
    "a header twice that may have several values": _header(b"Accept: text/plain\r\nAccept: application/json"),
    "HTTP/1.1 with the host in the target": b"GET http://test/livez HTTP/1.1\r\nHost: test\r\n\r\n",
    "an empty line before": b"\r\n" + _GET + b"\r\n",
    "a length": _POST + b"Content-Length: 25\r\n\r\n" + b'{"ids": [], "limit": 100}',
    "chunks": _CHUNKED + b'19\r\n{"ids": [], "limit": 100}\r\n0\r\n\r\n',
    "CHUNKED": _POST + b'Transfer-Encoding:\tCHUNKED\r\n\r\n19\r\n{"ids": [], "limit": 100}\r\n0\r\n\r\n',
    "chunk extensions": _CHUNKED + b'19;a=b\r\n{"ids": [], "limit": 100}\r\n0\r\n\r\n',
    "a trailer": _CHUNKED + b'19\r\n{"ids": [], "limit": 100}\r\n0\r\nX-Sum: 1\r\n\r\n',
}
