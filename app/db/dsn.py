"""Parses a DSN: which servers it names, and whether their certificates must be verified. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from app.settings import is_loopback

PORT = 5432

Options: TypeAlias = Mapping[str, str]

_INVALID_URL = (
    "not a valid URL: percent-encode special characters in the password; an IPv6 address must be the only host"
)


class Host(NamedTuple):
    """A server: a name, an address, or the folder of its Unix socket."""

    host: str
    port: int


def hosts(dsn: str) -> list[Host]:
    """Returns the hosts of the DSN, in the order in which it names them. Returns an empty list if
    the DSN names no host: the driver then tries its defaults on this machine."""
    parts, options = _split(dsn)
    host_list = _host_list(parts)
    if host_list:
        return [_parse_host(unquote(spec), PORT) for spec in host_list.split(",")]
    specs = [spec for spec in options.get("host", "").split(",") if spec]
    ports = [_parse_port(port) for port in options.get("port", "").split(",") if port] or [PORT]
    return [_parse_host(spec, ports[min(index, len(ports) - 1)]) for index, spec in enumerate(specs)]


def requires_tls(dsn: str) -> bool:
    """Whether the broker enforces TLS: the DSN has no `sslmode`, and at least one host is on
    another machine."""
    return "sslmode" not in _split(dsn)[1] and not all(
        (host.host.startswith("/") or is_loopback(host.host)) for host in hosts(dsn)
    )


def options(dsn: str) -> Options:
    """Returns the query parameters of the URL."""
    return _split(dsn)[1]


def _split(dsn: str) -> tuple[SplitResult, Options]:
    """Splits the URL. Rejects a list of hosts with an IPv6 address in brackets. Newer versions of
    Python reject it, too; older ones read it as one host."""
    try:
        parts = urlsplit(dsn)
    except ValueError:  # its text may repeat the password
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


def _parse_port(text: str) -> int:
    """Parses the port. The error does not repeat the text: if a password has an unescaped slash,
    the text is a part of the password."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("the port must be a number from 1 to 65535")
    return int(text)
