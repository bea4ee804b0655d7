"""The text of a key, `lsk_<id>_<secret>`, and what is stored of it: an HMAC.

A fast hash is right for 256 random bits: there is nothing to guess, and argon2 would cost 206 ms a request (this: about 2 µs).
"""

import hmac
import re
import secrets
from typing import NamedTuple

from pydantic import SecretStr

_KEY = re.compile(r"lsk_([0-9a-f]{16})_([0-9a-f]{64})")


class Secret(NamedTuple):
    id: str
    secret: str

    def text(self) -> str:
        return f"lsk_{self.id}_{self.secret}"

    def mac(self, pepper: bytes) -> bytes:
        return hmac.digest(pepper, self.secret.encode(), "sha256")


def pepper(setting: SecretStr | None) -> bytes:
    return setting.get_secret_value().encode() if setting else b""


def generate() -> Secret:
    return Secret(secrets.token_hex(8), secrets.token_hex(32))


def parse(text: str) -> Secret | None:
    found = _KEY.fullmatch(text)
    return Secret(*found.groups()) if found else None
