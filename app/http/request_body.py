"""Request bodies, limited, checked and decoded into models; and JSON responses.

Any content type is accepted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.types import Scope

from app.errors import BatchTooLarge, Fault, MalformedJson, PayloadTooLarge, UnsupportedMediaType
from app.http import strict_json
from app.http.body_decoder import BodyDecoder
from app.http.dependencies import Resolver
from app.http.headers import get_header
from app.http.read_only import EditedBody
from app.http.schema_types import EmptyObject
from app.server.exchange import get_exchange
from app.settings import Settings

T = TypeVar("T")
# Larger bodies are checked in a thread. To check 3 MB of small values took more than a second,
# during which no other request was served.
LARGE_BODY_BYTES = 256 * 1024
Limit = Literal["max_body_bytes", "max_batch_bytes"]

encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True)
class BodyResolver(Resolver):
    """A dependency: the body. `receive` waits for its bytes, and `resolve` decodes them."""

    receive: Callable[[Request], Awaitable[None]] = field(kw_only=True)


async def resolve_received(resolve: Callable[[Request], T], request: Request) -> T:
    """Calls `resolve` for a request whose body has been received: in a thread if it is large."""
    if get_exchange(request).buffered_bytes > LARGE_BODY_BYTES:
        return await asyncio.to_thread(resolve, request)
    return resolve(request)


def body(kind: type[T], *, limit: Limit = "max_body_bytes", allow_nul: bool = False, null_hint: str = "") -> Any:
    """A dependency: the body as `kind`. An empty body is `{}` if `kind` has no required field."""
    return _body(BodyDecoder(kind, null_hint=null_hint).decode, _default_of(kind), limit, allow_nul=allow_nul)


def edited_body(
    kind: type[msgspec.Struct],
    response: type[msgspec.Struct],
    *,
    advancing: Collection[str] = (),
    pause_dependent: Collection[str] = (),
) -> Any:
    """A dependency: the body of a PUT as `EditedBody`, which may have all members that GET returns.

    `read_only` explains the two kinds of read-only members. An empty body is an error and not `{}`,
    because that would unset everything.
    """
    decoder = BodyDecoder(kind)
    read_only = set(response.__struct_fields__) - set(kind.__struct_fields__)

    def decode(data: bytes) -> EditedBody[Any]:
        return EditedBody(*decoder.decode_with(read_only, data), advancing, pause_dependent)

    return _body(decode, None, "max_body_bytes", allow_nul=False)


def _body(decode: Callable[[bytes], T], empty: T | None, limit: Limit, *, allow_nul: bool) -> Any:
    def decode_checked(data: bytes, settings: Settings) -> T:
        max_values = strict_json.MAX_VALUES * (settings.max_batch_jobs if limit == "max_batch_bytes" else 2)
        strict_json.check(strict_json.decode_utf8(data), max_values=max_values, allow_nul=allow_nul)
        return decode(data)

    async def receive(request: Request) -> None:
        settings: Settings = request.app.state.settings
        _reject_content_encoding(request.scope)
        if not await get_exchange(request).receive(getattr(settings, limit)):
            raise _too_large(limit, settings)

    def resolve(request: Request) -> T:
        data = get_exchange(request).take_body()
        if data:
            return decode_checked(data, request.app.state.settings)
        if empty is None:
            raise MalformedJson("the body is empty: this call needs a JSON object")
        return empty

    async def dependency(request: Request) -> T:
        await receive(request)
        return await resolve_received(resolve, request)

    return BodyResolver(dependency, resolve=resolve, receive=receive)


def _default_of(kind: type[T]) -> T | None:
    try:
        return kind()
    except TypeError:
        return None


def _reject_content_encoding(scope: Scope) -> None:
    encoding = get_header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("identity", ""):
        raise UnsupportedMediaType("Content-Encoding is not supported: send the body as plain JSON")


def _too_large(name: Limit, settings: Settings) -> PayloadTooLarge | BatchTooLarge:
    limit: int = getattr(settings, name)
    kind = BatchTooLarge if name == "max_batch_bytes" else PayloadTooLarge
    return kind(f"the body has more than {limit} bytes", limit)


class JsonResponse(Response):
    """A JSON response.

    Its headers are known in advance, so they are built faster than by Starlette.
    """

    def __init__(self, body: bytes, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.lower().encode(), value.encode()) for name, value in headers),
        ]


def json_response(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Encodes a value.

    The trailing newline puts the shell's prompt after curl on a line of its own.
    """
    return JsonResponse(encode(value) + b"\n", status, (headers or {}).items())


def check_user_data(raw: msgspec.Raw | msgspec.UnsetType, limit: int, pointer: str) -> None:
    """Checks payload, result or checkpoint, whose limits are lower than that of the body."""
    if isinstance(raw, msgspec.UnsetType):
        return
    data = bytes(raw)
    if len(data) > limit:
        detail = f"{pointer} has {len(data)} bytes; the limit is {limit}"
        raise PayloadTooLarge(detail, limit, [Fault(pointer, "payload_too_large", detail)])
    strict_json.check_value_count(data, pointer)


NoBody = Annotated[EmptyObject, body(EmptyObject)]
