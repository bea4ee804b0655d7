"""TLS options of database connections, from the DSN. Certificates are verified against the authority that `sslrootcert` names, or against
the system's authorities. The driver alone would look for a file in the home directory, which most services do not have."""

import ssl
from collections.abc import Callable
from typing import Any

from app.db import dsn as names

SYSTEM = "system"
_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


class TlsError(OSError):
    """The TLS options of the DSN cannot be used."""


def options(dsn: str) -> dict[str, Any]:
    """Arguments for `asyncpg.connect`. Empty if the driver's own handling of the DSN is right."""
    given = names.options(dsn)
    if given.get("sslmode", "disable") not in _MODES:
        raise TlsError(f"sslmode is {given['sslmode']}, and must be one of {', '.join(_MODES)}")
    for name in _FILES:
        if name in given and given[name] != SYSTEM:
            _use(name, given[name], _read)
    mode = given.get("sslmode", "verify-full" if names.requires_tls(dsn) else "")
    if mode == "require" and "sslrootcert" in given:
        mode = "verify-ca"  # as libpq does
    return {"ssl": _context(given, check_name=mode == "verify-full")} if mode in ("verify-full", "verify-ca") else {}


def _context(given: names.Options, *, check_name: bool) -> ssl.SSLContext:
    root = given.get("sslrootcert", SYSTEM)
    context = ssl.create_default_context() if root == SYSTEM else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_name
    if root != SYSTEM:
        _use("sslrootcert", root, context.load_verify_locations)
    if "sslcrl" in given:
        _use("sslcrl", given["sslcrl"], context.load_verify_locations)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    if "sslcert" in given:
        key, password = given.get("sslkey"), given.get("sslpassword", "")
        _use("sslcert", given["sslcert"], lambda path: context.load_cert_chain(path, key, lambda: password))
    return context


def _read(path: str) -> None:
    with open(path, "rb"):
        pass


def _use(name: str, path: str, load: Callable[[str], None]) -> None:
    try:
        load(path)
    except OSError as error:
        reason = "it holds no usable certificate or key" if isinstance(error, ssl.SSLError) else error.strerror
        raise TlsError(f"the file {path}, which {name} in the database URL names, cannot be used: {reason}") from error
