"""What a DSN says and what it leaves open: which servers, and whether we must know who they are. Pure."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from app.settings import is_loopback

PORT = 5432

Options: TypeAlias = Mapping[str, str]


class Host(NamedTuple):
    """A server: a name or an address, or the folder of its Unix socket."""

    host: str
    port: int


def hosts(dsn: str) -> list[Host]:
    """In the order of the list. None when the DSN names no host: then the driver looks where it always does, on this machine."""
    parts, options = _parts(dsn)
    hosts = _hosts(parts)
    if hosts:
        return [_place(unquote(spec), PORT) for spec in hosts.split(",")]
    named = [spec for spec in options.get("host", "").split(",") if spec]
    ports = [_port(port) for port in options.get("port", "").split(",") if port] or [PORT]
    return [_place(spec, ports[min(index, len(ports) - 1)]) for index, spec in enumerate(named)]


def requires_tls(dsn: str) -> bool:
    """Whether the DSN leaves open how its connections are secured although one of them leaves this machine."""
    return "sslmode" not in _parts(dsn)[1] and not all(
        (place.host.startswith("/") or is_loopback(place.host)) for place in hosts(dsn)
    )


def options(dsn: str) -> Options:
    """The query parameters of the URL."""
    return _parts(dsn)[1]


def _parts(dsn: str) -> tuple[SplitResult, Options]:
    """Newer Pythons refuse brackets in a list of hosts, older ones read it as one host. Refuses it with any Python."""
    try:
        parts = urlsplit(dsn)
        if "," in (hosts := _hosts(parts)) and "[" in hosts:
            raise ValueError
    except ValueError:  # its text may repeat the password
        raise ValueError(
            "not a valid URL: escape special characters in the password, and name IPv6 hosts alone"
        ) from None
    return parts, dict(parse_qsl(parts.query))


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _place(spec: str, port: int) -> Host:
    if spec.startswith("/"):
        return Host(spec, port)
    if spec.startswith("["):
        host, _, rest = spec[1:].partition("]")
        return Host(host, _port(rest[1:]) if rest[1:] else port)
    host, _, own = spec.partition(":")
    return Host(host, _port(own) if own else port)


def _port(text: str) -> int:
    """The error does not repeat the text: after a password with an unescaped slash it is a part of the password."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("the port must be a number from 1 to 65535")
    return int(text)
