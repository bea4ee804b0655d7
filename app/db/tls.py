"""Translates the TLS options of a DSN into arguments for `asyncpg.connect`.

Certificates are verified against the certificate authorities in the file `sslrootcert`, or against
those of the system. The driver alone would look for a file in the home directory, but service
accounts often have no home directory.
"""

import ssl
from collections.abc import Callable
from typing import Any

from app.db import dsn as dsn_parser

SYSTEM = "system"
_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


class TlsError(OSError):
    """The TLS options of the DSN cannot be used."""


def options(dsn: str) -> dict[str, Any]:
    """Returns a dict with the `ssl` argument of `asyncpg.connect`. The dict is empty if the driver
    handles the DSN correctly on its own. Raises TlsError if an option cannot be used."""
    dsn_options = dsn_parser.options(dsn)
    if dsn_options.get("sslmode", "disable") not in _MODES:
        raise TlsError(f"sslmode is {dsn_options['sslmode']}, and must be one of {', '.join(_MODES)}")
    for name in _FILES:
        if name in dsn_options and dsn_options[name] != SYSTEM:
            _load_file(name, dsn_options[name], _read)
    mode = dsn_options.get("sslmode", "verify-full" if dsn_parser.requires_tls(dsn) else "")
    if mode == "require" and "sslrootcert" in dsn_options:
        mode = "verify-ca"  # as libpq does
    return (
        {"ssl": _context(dsn_options, check_name=mode == "verify-full")} if mode in ("verify-full", "verify-ca") else {}
    )


def _context(dsn_options: dsn_parser.Options, *, check_name: bool) -> ssl.SSLContext:
    root = dsn_options.get("sslrootcert", SYSTEM)
    context = ssl.create_default_context() if root == SYSTEM else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_name
    if root != SYSTEM:
        _load_file("sslrootcert", root, context.load_verify_locations)
    if "sslcrl" in dsn_options:
        _load_file("sslcrl", dsn_options["sslcrl"], context.load_verify_locations)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    if "sslcert" in dsn_options:
        key, password = dsn_options.get("sslkey"), dsn_options.get("sslpassword", "")
        _load_file("sslcert", dsn_options["sslcert"], lambda path: context.load_cert_chain(path, key, lambda: password))
    return context


def _read(path: str) -> None:
    with open(path, "rb"):
        pass


def _load_file(name: str, path: str, load: Callable[[str], None]) -> None:
    try:
        load(path)
    except OSError as error:
        reason = "it contains no usable certificate or key" if isinstance(error, ssl.SSLError) else error.strerror
        raise TlsError(f"the file {path}, which {name} in the database URL names, cannot be used: {reason}") from error
