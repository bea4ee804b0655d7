"""Parses a DSN: its servers, its options, and whether certificates must be verified. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from app.settings import environment_hosts, is_loopback

PORT = 5432

Options: TypeAlias = Mapping[str, str]

_INVALID_URL = (
    "not a valid URL: percent-encode special characters in the password; an IPv6 address must be the only host"
)


class Host(NamedTuple):
    """One server of a DSN. `host` is a name, an address, or the folder of a Unix socket."""

    host: str
    port: int


def hosts(dsn: str) -> list[Host]:
    """Returns the hosts of the DSN, in the order of the DSN. Returns an empty list if the DSN names
    no host: the driver then uses the host of a `service`, those in PGHOST, or its defaults on this
    machine."""
    parts, options = _split(dsn)
    host_list = _host_list(parts)
    if host_list:
        return [_parse_host(unquote(spec), PORT) for spec in host_list.split(",")]
    specs = [spec for spec in options.get("host", "").split(",") if spec]
    ports = [_parse_port(port) for port in options.get("port", "").split(",") if port] or [PORT]
    return [_parse_host(spec, ports[min(index, len(ports) - 1)]) for index, spec in enumerate(specs)]


def requires_tls(dsn: str) -> bool:
    """Whether the broker enforces TLS although the DSN does not ask for it: the DSN has no
    `sslmode`, and the driver may connect to another machine. Only the driver reads the file that
    has the host of a `service`, so that host may be on another machine."""
    dsn_hosts, dsn_options = hosts(dsn), options(dsn)
    if "sslmode" in dsn_options:
        return False
    if not dsn_hosts and "service" in dsn_options:
        return True
    return not all(map(_is_local, dsn_hosts or [_parse_host(spec, PORT) for spec in environment_hosts()]))


def options(dsn: str) -> Options:
    """Returns the query parameters of the URL."""
    return _split(dsn)[1]


def _split(dsn: str) -> tuple[SplitResult, Options]:
    """Splits the URL. Rejects a list of hosts that contains an IPv6 address in brackets. Newer
    versions of Python reject such a list, too; older versions read it as one host."""
    try:
        parts = urlsplit(dsn)
    except ValueError:  # the text of this error may contain the password
        raise ValueError(_INVALID_URL) from None
    host_list = _host_list(parts)
    if "," in host_list and "[" in host_list:
        raise ValueError(_INVALID_URL)
    return parts, dict(parse_qsl(parts.query))


def _host_list(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _parse_host(spec: str, default_port: int) -> Host:
    if spec.startswith("/"):
        return Host(spec, default_port)
    if spec.startswith("["):
        host, _, port = spec[1:].partition("]")
        return Host(host, _parse_port(port[1:]) if port[1:] else default_port)
    host, _, port = spec.partition(":")
    return Host(host, _parse_port(port) if port else default_port)


def _is_local(host: Host) -> bool:
    return host.host.startswith("/") or is_loopback(host.host)


def _parse_port(text: str) -> int:
    """Parses the port. The error message does not contain the text, which is a part of the password
    if the password contains an unescaped slash."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("the port must be a number from 1 to 65535")
    return int(text)
