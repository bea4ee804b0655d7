"""Applies a JSON merge patch (RFC 7396) to JSON text.

Decodes only the objects that the patch changes; every other value keeps its original text.
"""

import msgspec

from app.http.schema_types import Raw

_members = msgspec.json.Decoder(dict[str, Raw])


def merge_patch(text: str, patch: dict[str, Raw]) -> str:
    return msgspec.json.encode(_merge(Raw(text.encode()), patch)).decode()


def _merge(value: Raw, patch: dict[str, Raw]) -> dict[str, Raw]:
    members = _members.decode(value) if _is_object(value) else {}
    for name, change in patch.items():
        if bytes(change).strip() == b"null":
            members.pop(name, None)
        elif _is_object(change):
            inner = _merge(members.get(name, Raw(b"{}")), _members.decode(change))
            members[name] = Raw(msgspec.json.encode(inner))
        else:
            members[name] = change
    return members


def _is_object(value: Raw) -> bool:
    return bytes(value).lstrip().startswith(b"{")
