"""Bodies in and answers out: read with a cap, checked, decoded into a shape; encoded from a shape. No content type is asked for."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.types import Scope

from app.errors import BatchTooLarge, Fault, MalformedJson, PayloadTooLarge, UnsupportedMediaType
from app.http import strict_json
from app.http.body_decoder import BodyDecoder
from app.http.complete_request import CompleteRequest, resolver
from app.http.headers import sent_header
from app.http.read_only import Edited
from app.http.schema_types import EmptyObject
from app.settings import Settings

T = TypeVar("T")
LARGE = 256 * 1024  # bytes; to check 3 MB of small values took more than a second, in which nobody else was served
Limit = Literal["max_body_bytes", "max_batch_bytes"]

encode = msgspec.json.Encoder(decimal_format="number").encode


def body(kind: type[T], *, limit: Limit = "max_body_bytes", nul_in_text: bool = False, null_hint: str = "") -> Any:
    """A dependency that is the request's body as `kind`. An empty body is `{}` where nothing is required."""
    return _body(BodyDecoder(kind, null_hint=null_hint).decode, _default_of(kind), limit, nul_in_text=nul_in_text)


def edited_body(
    kind: type[msgspec.Struct],
    json_response: type[msgspec.Struct],
    *,
    moving: Collection[str] = (),
    by_pause: Collection[str] = (),
) -> Any:
    """A dependency that is the body of a PUT as `Edited`, which may have all members that GET returns (see `read_only`). An empty body is
    an error and not `{}`, because that would unset everything."""
    decoder = BodyDecoder(kind)
    read_only = set(json_response.__struct_fields__) - set(kind.__struct_fields__)

    def decode(data: bytes) -> Edited[Any]:
        return Edited(*decoder.decode_with(read_only, data), moving, by_pause)

    return _body(decode, None, "max_body_bytes", nul_in_text=False)


def _body(decode: Callable[[bytes], T], empty: T | None, limit: Limit, *, nul_in_text: bool) -> Any:
    def checked(data: bytes, settings: Settings) -> T:
        nodes = strict_json.MAX_NODES * (settings.max_batch_jobs if limit == "max_batch_bytes" else 2)
        strict_json.check(strict_json.text(data), max_nodes=nodes, nul_in_text=nul_in_text)
        return decode(data)

    def absent() -> T:
        if empty is None:
            raise MalformedJson("the body is empty: this call needs a JSON object")
        return empty

    def taken(request: CompleteRequest) -> T:
        settings: Settings = request.app.state.settings
        _refuse_encoded(request.scope)
        if len(request.data) > getattr(settings, limit):
            raise _too_large(limit, settings)
        return checked(request.data, settings) if request.data else absent()

    async def read(request: Request) -> T:
        settings: Settings = request.app.state.settings
        _refuse_encoded(request.scope)
        data = await _read_capped(request, limit, settings)
        if len(data) > LARGE:
            return await asyncio.to_thread(checked, data, settings)
        return checked(data, settings) if data else absent()

    return resolver(taken, read)


def _default_of(kind: type[T]) -> T | None:
    try:
        return kind()
    except TypeError:
        return None


def _refuse_encoded(scope: Scope) -> None:
    encoding = sent_header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("identity", ""):
        raise UnsupportedMediaType("send the body without a Content-Encoding: the broker reads plain JSON only")


async def _read_capped(request: Request, name: Limit, settings: Settings) -> bytes:
    """Stops reading at the cap, so that an endless body costs no more memory than the largest allowed one."""
    limit: int = getattr(settings, name)
    declared = sent_header(request.scope, b"content-length") or ""
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(name, settings)
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise MalformedJson("the client left in the middle of the body")
        chunks.append(message["body"])
        size += len(message["body"])
        if size > limit:
            raise _too_large(name, settings)
        more = message["more_body"]
    return b"".join(chunks)


def _too_large(name: Limit, settings: Settings) -> PayloadTooLarge | BatchTooLarge:
    limit: int = getattr(settings, name)
    kind = BatchTooLarge if name == "max_batch_bytes" else PayloadTooLarge
    return kind(f"the body has more than {limit} bytes", limit)


class JsonResponse(Response):
    """Starlette's, whose headers are known beforehand."""

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
    return JsonResponse(
        encode(value) + b"\n", status, (headers or {}).items()
    )  # so that the shell's prompt after curl is on a line of its own


def check_user_data(raw: msgspec.Raw | msgspec.UnsetType, limit: int, pointer: str) -> None:
    """Payload, result and checkpoint have caps of their own, below those of the body."""
    if isinstance(raw, msgspec.UnsetType):
        return
    data = bytes(raw)
    if len(data) > limit:
        detail = f"{pointer} has {len(data)} bytes, at most {limit} are taken"
        raise PayloadTooLarge(detail, limit, [Fault(pointer, "payload_too_large", detail)])
    strict_json.check_nodes(data, pointer)


NoBody = Annotated[EmptyObject, body(EmptyObject)]
