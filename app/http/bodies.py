"""Reads request bodies and builds JSON responses.

The broker limits the size of a body, checks the JSON, and decodes it into a model. The broker
ignores the Content-Type of a request.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.params import Depends
from msgspec import UNSET, Raw, inspect

from app.errors import BatchTooLarge, Fault, MalformedJson, PayloadTooLarge, UnsupportedMediaType, ValidationFailed
from app.http import json_pointer, strict_json
from app.http.body_errors import BodyErrors, TooManyValues
from app.http.instants import is_in_range
from app.http.read_only import EditedBody
from app.http.schema_types import EmptyObject
from app.http.split_body import SplitBodyDecoder
from app.server.exchange import Exchange
from app.settings import Settings

T = TypeVar("T")
Path = tuple[str, ...]

# Larger bodies are checked chunk by chunk or in a thread. Checking 3 MB of small values took more
# than a second, during which no other request was served. Checking 64 KiB takes at most 4 ms.
LARGE_BODY_BYTES = 64 * 1024
LimitName = Literal["max_body_bytes", "max_batch_bytes"]

encode = msgspec.json.Encoder(decimal_format="number").encode

_NOT_JSON = "the body is not JSON"
_PATH = re.compile(r" - at `(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")


# Parameters


class BodyReader(Depends):
    """Reads the body of a request, as a parameter of a route's function.

    Unlike a `Resolver`, a `BodyReader` is asynchronous: it waits until the body has arrived and, if
    the body is large, until it is decoded.
    """


def body(
    kind: type[T], *, limit_name: LimitName = "max_body_bytes", allow_nul: bool = False, null_hint: str = ""
) -> Any:
    """Declares a parameter of a route's function: the body, decoded as `kind`. An empty body is
    decoded like `{}` if no field is required.

    `allow_nul`: the body may contain `\\u0000`. The service must then check the parts of the body
    that must not contain it. `null_hint` is added to the error for a null.
    """
    decode = BodyDecoder(kind, null_hint=null_hint).decode
    split_decoder = SplitBodyDecoder(kind) if limit_name == "max_batch_bytes" else None
    return _body(decode, _default_of(kind), limit_name, allow_nul=allow_nul, split_decoder=split_decoder)


def edited_body(
    kind: type[msgspec.Struct],
    response: type[msgspec.Struct],
    *,
    advancing_members: Collection[str] = (),
    pause_dependent_members: Collection[str] = (),
    is_patch: bool = False,
    null_hint: str = "",
) -> Any:
    """Declares a parameter of a route's function: the body of a PUT or PATCH, as an `EditedBody`.
    The body may have all members that GET returns. The module `read_only` explains
    `advancing_members` and `pause_dependent_members`. An empty body of a PUT is an error: decoded
    like `{}`, it would unset every member.
    """
    decoder = BodyDecoder(kind, null_hint=null_hint)
    read_only = set(response.__struct_fields__) - set(kind.__struct_fields__)

    def decode(data: bytes) -> EditedBody[Any]:
        decoded = decoder.decode_with_extra_members(read_only, data)
        return EditedBody(*decoded, advancing_members, pause_dependent_members)

    return _body(decode, decode(b"{}") if is_patch else None, "max_body_bytes", allow_nul=False)


def _body(
    decode: Callable[[bytes], T],
    default: T | None,
    limit_name: LimitName,
    *,
    allow_nul: bool,
    split_decoder: SplitBodyDecoder[T] | None = None,
) -> Any:
    def max_values(settings: Settings) -> int:
        # MAX_VALUES is the limit for one payload. A batch may have that many values for each of its
        # jobs. Any other body may have twice as many, because it has members beside the payload.
        return strict_json.MAX_VALUES * (settings.max_batch_jobs if limit_name == "max_batch_bytes" else 2)

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
        if b"content-encoding" in request.scope["headers_by_name"]:
            _reject_encodings(request.scope["headers"])
        exchange: Exchange = request.scope["state"]["exchange"]
        pieces = await exchange.receive(getattr(settings, limit_name))
        if pieces is None:
            raise _too_large(limit_name, settings)
        if exchange.received_bytes > LARGE_BODY_BYTES:
            return await decode_large(pieces, exchange.received_bytes, settings)
        if pieces:
            return decode_checked(b"".join(pieces), settings)
        if default is None:
            raise MalformedJson("the body is empty: this call needs a JSON object")
        return default

    return BodyReader(read)


def _reject_encodings(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Rejects a body with a Content-Encoding other than `identity`. The header may have several
    lines, and each line may be a list."""
    values = b",".join(value for name, value in headers if name == b"content-encoding").lower().split(b",")
    if not {value.strip() for value in values} <= {b"identity", b""}:
        raise UnsupportedMediaType("Content-Encoding is not supported: send the body as plain JSON")


def _default_of(kind: type[T]) -> T | None:
    try:
        return kind()
    except TypeError:
        return None


def _too_large(limit_name: LimitName, settings: Settings) -> PayloadTooLarge | BatchTooLarge:
    limit: int = getattr(settings, limit_name)
    kind = BatchTooLarge if limit_name == "max_batch_bytes" else PayloadTooLarge
    return kind(f"the body has more than {limit} bytes", limit)


# Decoding


class BodyDecoder(Generic[T]):
    """Decodes bodies into one model. If msgspec rejects a body, `body_errors` reads it again and
    finds every error."""

    def __init__(self, kind: type[T], *, null_hint: str = "") -> None:
        """`null_hint` is added to the error for a null."""
        self._null_hint = null_hint
        self._decoder = msgspec.json.Decoder(kind)
        self._kind = inspect.type_info(kind)
        self._instants = list(_instants(self._kind))
        first = list(dict.fromkeys(path[0] for path in self._instants))
        # Most bodies have no instants. Checking that the fields with instants are unset takes
        # 0.2 µs; following the path to each instant takes 1 µs.
        self._get_instant_fields = attrgetter(*first) if first else None
        self._all_unset = (UNSET,) * len(first) if len(first) > 1 else UNSET

    def decode(self, data: bytes | Raw, pointer: str = "", *, suggest: bool = True) -> T:
        """Decodes a body, or the part of a body to which `pointer` points.

        `suggest`: the error for an unknown field names the most similar one, which takes 0.1 ms.
        """
        try:
            body = self._decoder.decode(data)
        except msgspec.ValidationError as error:
            errors = BodyErrors(suggest=suggest, null_hint=self._null_hint)
            return self._decode_with_all_errors(errors, data, pointer, str(error))
        except msgspec.DecodeError:
            raise MalformedJson(_NOT_JSON) from None
        if (
            self._get_instant_fields is not None
            and self._get_instant_fields(body) != self._all_unset
            and not self._is_in_range(body)
        ):
            return self._decode_with_all_errors(BodyErrors(), data, pointer, "")
        return body

    def decode_with_extra_members(
        self, extra_names: Container[str], data: bytes
    ) -> tuple[T | None, ValidationFailed | None, dict[str, Raw]]:
        """Decodes a body that may have the members `extra_names`, which are not fields of the
        model. Returns the body or None, the problem or None, and these members. The members are
        separate from the body, because the model rejects unknown fields."""
        errors = BodyErrors(extra_names, null_hint=self._null_hint)
        try:
            return self._decode_with_all_errors(errors, data, "", ""), None, errors.extra_members
        except ValidationFailed as problem:
            return None, problem, errors.extra_members
        except msgspec.DecodeError:
            raise MalformedJson(_NOT_JSON) from None

    def _decode_with_all_errors(self, errors: BodyErrors, data: bytes | Raw, pointer: str, message: str) -> T:
        """Decodes the body with `body_errors`, which reports all errors and accepts integral floats
        as integers. `message` is the error of msgspec, if there is one."""
        try:
            body = self._decoder.decode(msgspec.json.encode(errors.walk(self._kind, data, pointer)))
        except (TooManyValues, msgspec.ValidationError):
            raise ValidationFailed.of(errors.faults or [_fault(message, pointer)], errors.count) from None
        if errors.count > errors.rule_count:
            raise ValidationFailed.of(errors.faults, errors.count)
        return body

    def _is_in_range(self, body: object) -> bool:
        """Whether all instants in the body are in the accepted range. msgspec has no constraint for
        the range of a datetime."""
        for path in self._instants:
            value = body
            for name in path:
                value = getattr(value, name, UNSET)
            if isinstance(value, datetime) and not is_in_range(value):
                return False
        return True


def _instants(kind: inspect.Type, path: Path = ()) -> Iterator[Path]:
    """Yields the path to each field of a model that is an instant.

    Does not search lists, because no model has a list with instants in it.
    """
    if isinstance(kind, inspect.Metadata):
        yield from _instants(kind.type, path)
    elif isinstance(kind, inspect.DateTimeType):
        yield path
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from _instants(field.type, (*path, field.name))


def _fault(message: str, base: str) -> Fault:
    """Converts an error message of msgspec to a fault, for an error in a part of the body that
    `body_errors` has not visited.

    An example of a message: "Expected `int`, got `str` - at `$.jobs[3].queue`".
    """
    path = _PATH.search(message)
    pointer = base + "".join(f"/{name or index}" for name, index in _STEP.findall(path[1] if path else ""))
    return Fault(pointer, "invalid", f"{json_pointer.format_pointer(pointer)} is invalid")


# Responses


class JsonResponse(Response):
    """A JSON response. It builds its headers faster than Starlette's `Response`, because their
    names are fixed."""

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
    """Encodes a value as a JSON response.

    The body ends with a newline, so that after curl the prompt of the shell is on a new line.
    """
    return JsonResponse(encode(value) + b"\n", status, (headers or {}).items())


def user_data_fault(raw: Raw | msgspec.UnsetType, limit: int, pointer: str) -> Fault | None:
    """Returns a fault if `raw`, a payload, result or checkpoint, has too many values. Raises
    PayloadTooLarge if `raw` has more than `limit` bytes. Both limits are lower than those of the
    whole body."""
    if isinstance(raw, msgspec.UnsetType):
        return None
    data = bytes(raw)
    if len(data) > limit:
        detail = f"{pointer} has {len(data)} bytes; the limit is {limit}"
        raise PayloadTooLarge(detail, limit, [Fault(pointer, "payload_too_large", detail)])
    return strict_json.value_count_fault(data, pointer)


NoBody = Annotated[EmptyObject, body(EmptyObject)]
