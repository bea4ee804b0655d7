"""Request bodies, limited, checked and decoded into models; and JSON responses.

Any content type is accepted.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.params import Depends
from starlette.types import Scope

from app.errors import BatchTooLarge, Fault, MalformedJson, PayloadTooLarge, UnsupportedMediaType
from app.http import strict_json
from app.http.body_decoder import BodyDecoder
from app.http.headers import get_header
from app.http.read_only import EditedBody
from app.http.schema_types import EmptyObject
from app.http.split_body import SplitBodyDecoder
from app.server.exchange import get_exchange
from app.settings import Settings

T = TypeVar("T")
# Larger bodies are checked chunk by chunk or in a thread. To check 3 MB of small values took more
# than a second, during which no other request was served; to check 64 kB takes at most 4 ms.
LARGE_BODY_BYTES = 64 * 1024
Limit = Literal["max_body_bytes", "max_batch_bytes"]

encode = msgspec.json.Encoder(decimal_format="number").encode


class BodyReader(Depends):
    """A dependency: the body. The only one that waits: for the bytes, and while it decodes many."""


def body(kind: type[T], *, limit: Limit = "max_body_bytes", allow_nul: bool = False, null_hint: str = "") -> Any:
    """A dependency: the body as `kind`. An empty body is `{}` if `kind` has no required field."""
    decode = BodyDecoder(kind, null_hint=null_hint).decode
    split_decoder = SplitBodyDecoder(kind) if limit == "max_batch_bytes" else None
    return _body(decode, _default_of(kind), limit, allow_nul=allow_nul, split_decoder=split_decoder)


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


def _body(
    decode: Callable[[bytes], T],
    empty: T | None,
    limit: Limit,
    *,
    allow_nul: bool,
    split_decoder: SplitBodyDecoder[T] | None = None,
) -> Any:
    def max_values(settings: Settings) -> int:
        return strict_json.MAX_VALUES * (settings.max_batch_jobs if limit == "max_batch_bytes" else 2)

    def decode_checked(data: bytes, settings: Settings) -> T:
        strict_json.check(data, max_values=max_values(settings), allow_nul=allow_nul)
        return decode(data)

    async def decode_large(pieces: Sequence[bytes], size: int, settings: Settings) -> T:
        if split_decoder is not None and size < max_values(settings):
            check = partial(strict_json.check, max_values=size, allow_nul=allow_nul)
            split_body = await split_decoder.decode(pieces, check)
            if split_body is not None:
                return split_body
        return await asyncio.to_thread(lambda: decode_checked(b"".join(pieces), settings))

    async def read(request: Request) -> T:
        settings: Settings = request.app.state.broker.infra.settings
        _reject_content_encoding(request.scope)
        exchange = get_exchange(request)
        pieces, size = await exchange.receive(getattr(settings, limit)), exchange.received_bytes
        if pieces is None:
            raise _too_large(limit, settings)
        if size > LARGE_BODY_BYTES:
            return await decode_large(pieces, size, settings)
        if size:
            return decode_checked(b"".join(pieces), settings)
        if empty is None:
            raise MalformedJson("the body is empty: this call needs a JSON object")
        return empty

    return BodyReader(read)


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

    def __init__(self, body: bytes, status: int, headers: Iterable[tuple[str, str]], length: int | None = None) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % (len(body) if length is None else length)),
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
