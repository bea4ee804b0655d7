"""Parses the requests of one connection.

Rejects requests that a proxy and the broker could read in different ways (request smuggling,
docs/reliability/rules.md#r16). httptools rejects most of them. This module rejects the others, and
requests over a limit.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NoReturn
from urllib.parse import unquote

import httptools
from starlette.types import Scope

from app.errors import BadRequest, HeadersTooLarge, Problem, UrlTooLong
from app.server.limits import COUNTED_BODY_ABOVE, MAX_TINY_CHUNKS, SMALL_BODY, ConnectionLimits, Header

if TYPE_CHECKING:
    from app.server.connection import HardenedConnection

_INVALID_IN_HOST = frozenset(b" \t,/@?#\\")
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
# Headers that may not be repeated: a proxy could use the first, and the broker the second.
_SINGLE_VALUED = {b"host": "Host", b"authorization": "Authorization", b"idempotency-key": "Idempotency-Key"}


class StopParsing(Exception):
    """Raised by a callback of httptools to reject the request; `RequestParser._error` says why."""


class RequestParser:
    """Parses the input of one connection, and calls these methods of the connection:

    - `on_request` for a small request (see connection.py), when its body is complete
    - `on_head`, `on_body` and `on_complete` for any other request, as its parts arrive

    `part` is the part of a request that is being read: its head, its body, or None between two
    requests. `part_changed` says whether a part began or ended in the last call of `feed`.
    """

    def __init__(self, connection: "HardenedConnection", limits: ConnectionLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._max_headers = limits.max_headers
        self.part: Literal["head", "body"] | None = None
        self.part_changed = False
        self._error: Problem | None = None  # why a callback has stopped the parser
        self._url = b""
        self._headers: list[Header] = []
        self._header_bytes = self._body_bytes = self._body_chunks = 0
        self._bytes_at_last_check = 0
        self._small_request: Scope | None = None  # the small request whose body is being read
        self._small_body: list[bytes] = []
        self._counted_bytes = 0  # bytes of the small body that count as buffered
        self._keep_alive = False  # whether the connection stays open after the small request
        self._restart()

    def _restart(self) -> None:
        """Creates a new httptools parser, which ignores input after a request with
        `Connection: close`."""
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # Bytes that were fed since the previous part ended. The call of `feed` in which that part
        # ended does not count.
        self._bytes_read = 0

    def close(self) -> None:
        """Deletes the httptools parser. That parser and this object refer to each other, so without
        the deletion only the garbage collector would free them."""
        self.discard_body()
        del self._parser

    @property
    def has_small_request(self) -> bool:
        """Whether the body of a small request is being read."""
        return self._small_request is not None

    def close_after_response(self) -> None:
        """Makes the small request the last one of its connection."""
        self._keep_alive = False

    def discard_body(self) -> None:
        """Drops the small request and its body. The body no longer counts as buffered."""
        self._small_request, self._small_body = None, []
        if self._counted_bytes:
            self._limits.uncount_buffered(self._counted_bytes)
            self._counted_bytes = 0

    def has_progressed(self, min_bytes: float) -> bool:
        """Whether the body has grown by at least `min_bytes` since the last call."""
        added, self._bytes_at_last_check = self._body_bytes - self._bytes_at_last_check, self._body_bytes
        return added >= min_bytes

    def feed(self, data: bytes) -> Problem | None:
        """Parses input. Returns an error if a request is rejected. After an error, `feed` must not
        be called again."""
        self.part_changed = False
        self._bytes_read += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            return self._error or BadRequest(self._describe(error))
        return self._check_bytes_read() if self._bytes_read > self._limits.max_header_bytes else None

    def _describe(self, error: httptools.HttpParserError) -> str:
        """Describes invalid input. A client with an invalid request line often speaks TLS or HTTP/2."""
        kind, has_version = type(error), self._parser.get_http_version() in ("1.0", "1.1")
        if kind is httptools.HttpParserInvalidMethodError or (kind is httptools.HttpParserError and not has_version):
            return "the request line is not valid HTTP/1.1; this port speaks plain HTTP"
        return f"the request cannot be parsed: {error}"

    def _ignore_upgrade(self, remaining: bytes) -> Problem | None:
        """Parses the head again without its Upgrade header, and then the remaining bytes.

        After a head with an Upgrade header, httptools parses nothing, because another protocol
        might follow. The body would be lost. Java's HttpClient sends the header (for h2c) with
        every first request.
        """
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        self._restart()
        return self.feed(b"\r\n".join([*lines, b"", b""]) + remaining)

    def _check_bytes_read(self) -> Problem | None:
        """Rejects a head, chunk extensions or trailers that are too long or endless."""
        if self.part == "head":
            return self._too_large()
        if self.part == "body" and self._bytes_read > 2 * self._body_bytes + self._limits.max_header_bytes:
            return BadRequest("chunk overhead exceeds the body size")
        return None

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._header_bytes = b"", [], 0
        self.part, self.part_changed = "head", True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._header_bytes += len(name) + len(value) + 4
        if len(self._headers) > self._max_headers:
            self._stop(HeadersTooLarge(f"more than {self._max_headers} headers"))

    def on_headers_complete(self) -> None:
        version, headers = self._parser.get_http_version(), dict(reversed(self._headers))
        self._check_head(version, headers)
        if self._parser.should_upgrade():
            return  # `_ignore_upgrade` parses the head again
        scope = self._scope(version, headers)
        self._headers = []  # trailers must not be added to the headers of the request
        self.part, self.part_changed = "body", True
        self._bytes_read = self._body_bytes = self._body_chunks = self._bytes_at_last_check = 0
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        is_chunked = b"transfer-encoding" in headers
        declared_bytes = 0 if is_chunked else int(headers.get(b"content-length", 0))
        expects_continue = b"expect" in headers and headers[b"expect"].lower() == b"100-continue"
        if declared_bytes <= SMALL_BODY and not is_chunked and not expects_continue:
            self._small_request, self._keep_alive = scope, keep_alive
            return
        error = self._connection.on_head(
            scope, keep_alive=keep_alive, declared_bytes=declared_bytes, expects_continue=expects_continue
        )
        if error is not None:
            self._stop(error)

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        self._body_chunks += 1
        if self._body_chunks > MAX_TINY_CHUNKS and self._body_bytes < 16 * self._body_chunks:
            self._stop(BadRequest("too many chunks of less than 16 bytes"))
        if self._small_request is None:
            error = self._connection.on_body(data)
        else:
            self._small_body.append(data)
            error = self._count_body() if self._body_bytes > COUNTED_BODY_ABOVE else None
        if error is not None:
            self._stop(error)

    def _count_body(self) -> Problem | None:
        """Counts the received bytes of the small request as buffered. Returns an error if this
        process has buffered too many bytes."""
        added, self._counted_bytes = self._body_bytes - self._counted_bytes, self._body_bytes
        return self._limits.count_buffered(added)

    def on_message_complete(self) -> None:
        if self.part != "body":
            return  # `_ignore_upgrade` parses the head again
        self.part, self.part_changed = None, True
        self._bytes_read = 0
        if self._small_request is None:
            self._connection.on_complete()
            return
        scope, body = self._small_request, b"".join(self._small_body)
        self.discard_body()
        error = self._connection.on_request(scope, body, keep_alive=self._keep_alive)
        if error is not None:
            self._stop(error)

    def _stop(self, error: Problem) -> NoReturn:
        """Rejects the request from a callback.

        httptools turns the exception of a callback into an error of its own, so `_error` keeps the
        problem. The problem itself is not raised, because its traceback would keep the received
        bytes in memory until the connection is closed: half a MiB for each of a hundred rejected
        uploads.
        """
        self._error = error
        raise StopParsing

    # Heads

    def _check_head(self, version: str, headers: Mapping[bytes, bytes]) -> None:
        """Rejects heads that httptools accepts and the broker does not.

        Rejects every CONNECT, because httptools treats CONNECT as an upgrade even without an
        Upgrade header. Parsing the head again without that header would not help.
        """
        url_bytes = len(self._url)
        if url_bytes > self._limits.max_url_bytes or url_bytes + self._header_bytes > self._limits.max_header_bytes:
            self._stop(self._too_large())
        if version != "1.1" and version != "1.0":
            self._stop(BadRequest(f"HTTP/{version} is not supported"))
        if b"transfer-encoding" in headers:
            self._check_coding(version)
        if self._parser.get_method() == b"CONNECT":
            self._stop(BadRequest("CONNECT is not supported: this server is not a proxy"))
        if len(headers) != len(self._headers):  # at least one header is repeated
            self._check_repeated()
        self._check_host(version, headers)

    def _check_coding(self, version: str) -> None:
        if version == "1.0":
            self._stop(BadRequest("Transfer-Encoding is not allowed in HTTP/1.0"))
        if [value.lower() for name, value in self._headers if name == b"transfer-encoding"] != [b"chunked"]:
            self._stop(BadRequest("the only supported Transfer-Encoding is chunked"))

    def _check_repeated(self) -> None:
        names = [name for name, _ in self._headers]
        for name, title in _SINGLE_VALUED.items():
            if names.count(name) > 1:
                self._stop(BadRequest(f"expected one {title} header, got {names.count(name)}"))

    def _check_host(self, version: str, headers: Mapping[bytes, bytes]) -> None:
        """Checks the Host header, and that the target is a path or an absolute URL on that host.

        Clients send an absolute URL (`GET http://host/path`) to proxies. If its host is that of the
        Host header, it means the same as the path. HTTP/1.0 needs no Host header, because old
        health checks send none.
        """
        host = headers.get(b"host", b"")
        if b"host" not in headers and version == "1.1":
            self._stop(BadRequest("expected one Host header, got 0"))
        if not _INVALID_IN_HOST.isdisjoint(host):
            self._stop(BadRequest("invalid Host header"))
        if b"#" in self._url or not (self._url[:1] == b"/" or self._url.startswith(b"http://%b/" % host)):
            self._stop(BadRequest("the request target must be a path"))

    def _too_large(self) -> Problem:
        """Returns the error for a head that is too large: 414 if its URL alone is too long,
        otherwise 431."""
        if len(self._url) > self._limits.max_url_bytes:
            return UrlTooLong(f"the URL has more than {self._limits.max_url_bytes} bytes")
        return HeadersTooLarge(f"the request line and headers have more than {self._limits.max_header_bytes} bytes")

    def _scope(self, version: str, headers: Mapping[bytes, bytes]) -> Scope:
        """Builds the ASGI scope. `headers` has the first value of each header, by name, for
        `get_header`."""
        target, query = self._url, b""
        if target[:1] != b"/" or b"?" in target:
            url = httptools.parse_url(target)
            target, query = url.path, url.query or b""
        path = target.decode("ascii")
        return {
            "method": self._parser.get_method().decode("ascii"),
            "http_version": version,
            "path": _decode(path) if "%" in path else path,
            "raw_path": target,
            "query_string": query,
            "headers": self._headers,
            "headers_by_name": headers,
            "type": "http",
            "asgi": _ASGI,
        }


def _decode(path: str) -> str:
    """Percent-decodes the path, except slashes.

    An encoded slash stays encoded, because it is part of a name and must not lead to another route.
    """
    return unquote(_ENCODED_SLASH.sub("%252F", path))
