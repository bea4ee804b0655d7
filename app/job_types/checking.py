"""Payloads against a schema: compiles it, and turns what the validator says into pointers."""

from collections.abc import Iterator
from itertools import islice

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError

from app.errors import Fault, ValidationFailed
from app.web.shapes import Raw

MOST_FAULTS = 20
MOST_CHARACTERS = 300


def compiled(schema: Raw) -> jsonschema_rs.Validator:
    """Reads nothing but the schema itself, and runs patterns in linear time."""
    return jsonschema_rs.validator_for(
        msgspec.json.decode(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions(), mask="the value"
    )


class PayloadCheck:
    """Called with a payload and the pointer to it, raises ValidationFailed if it does not fit."""

    def __init__(self, schema: Raw) -> None:
        self._validator = compiled(schema)

    def __call__(self, payload: Raw, at: str) -> None:
        value = msgspec.json.decode(payload)
        if self._validator.is_valid(value):
            return
        faults = list(islice(self._faults(value, at), MOST_FAULTS))
        raise ValidationFailed(faults[0].detail, faults=faults)

    def _faults(self, value: object, at: str) -> Iterator[Fault]:
        for error in self._validator.iter_errors(value):
            yield Fault(at + pointer(error.instance_path), "invalid", error.message[:MOST_CHARACTERS])


def pointer(path: list[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


__all__ = ["PayloadCheck", "ValidationError", "compiled", "pointer"]
