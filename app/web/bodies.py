"""Bodies in and answers out: read with a cap, checked, decoded into a shape; encoded from a shape. No content type is asked for."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Request, Response

from app.errors import BatchTooLarge, Fault, MalformedJson, PayloadTooLarge, ValidationFailed
from app.settings import Settings
from app.web import strict_json
from app.web.headers import sent_header
from app.web.shapes import Nothing
from app.web.whole import Whole, at_once

T = TypeVar("T")
LARGE = 256 * 1024  # bytes; to check 3 MB of small values took more than a second, in which nobody else was served
Limit = Literal["max_body_bytes", "max_batch_bytes"]

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")
_FIELD = re.compile(r"(?P<why>unknown|missing required) field `(?P<name>.*)`", re.DOTALL)

_encode = msgspec.json.Encoder(decimal_format="number").encode


def body(kind: type[T], *, limit: Limit = "max_body_bytes", nul_in_text: bool = False) -> Any:
    """A dependency that is the request's body as `kind`. An empty body is `{}` where nothing is required."""
    decoder = msgspec.json.Decoder(kind)
    empty = _default_of(kind)

    def check(data: bytes, settings: Settings) -> None:
        nodes = strict_json.MAX_NODES * (settings.max_batch_jobs if limit == "max_batch_bytes" else 2)
        strict_json.check(strict_json.text(data), max_nodes=nodes, nul_in_text=nul_in_text)

    def decoded(data: bytes) -> T:
        return empty if not data and empty is not None else decode(decoder, data)

    def taken(request: Whole) -> T:
        settings: Settings = request.app.state.settings
        if len(request.data) > getattr(settings, limit):
            raise _too_large(limit, settings)
        if request.data:
            check(request.data, settings)
        return decoded(request.data)

    async def read(request: Request) -> T:
        settings: Settings = request.app.state.settings
        data = await _read_capped(request, limit, settings)
        if len(data) > LARGE:
            await asyncio.to_thread(check, data, settings)
        elif data:
            check(data, settings)
        return decoded(data)

    return at_once(taken, read)


def _default_of(kind: type[T]) -> T | None:
    try:
        return kind()
    except TypeError:
        return None


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


def decode(decoder: "msgspec.json.Decoder[T]", data: bytes | msgspec.Raw, at: str = "") -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        fault = _fault(str(error), at)
        raise ValidationFailed(fault.detail, faults=[fault]) from None
    except msgspec.DecodeError as error:
        raise MalformedJson(str(error)) from None


def _fault(message: str, at: str) -> Fault:
    """msgspec's "Expected `int`, got `str` - at `$.jobs[3].queue`" as a pointer, a code and a sentence."""
    place = _PLACE.match(message)
    assert place is not None
    pointer = at + "".join(f"/{name or index}" for name, index in _STEP.findall(place["path"] or ""))
    field = _FIELD.search(place["what"])
    if field is None:
        return Fault(pointer, "invalid", place["what"].replace(r"\\Z", "$"))
    return Fault(f"{pointer}/{field['name']}", "unknown_field" if field["why"] == "unknown" else "missing", place["what"])


class Answer(Response):
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


def answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Answer(_encode(value) + b"\n", status, (headers or {}).items())  # curl's prompt begins on a line of its own


def check_user_data(raw: msgspec.Raw | msgspec.UnsetType, limit: int, pointer: str) -> None:
    """Payload, result and checkpoint have caps of their own, below those of the body."""
    if isinstance(raw, msgspec.UnsetType):
        return
    data = bytes(raw)
    if len(data) > limit:
        detail = f"{pointer} has {len(data)} bytes, at most {limit} are taken"
        raise PayloadTooLarge(detail, limit, [Fault(pointer, "payload_too_large", detail)])
    strict_json.check_nodes(data, pointer)


NoBody = Annotated[Nothing, body(Nothing)]
