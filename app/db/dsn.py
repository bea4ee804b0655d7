"""What a DSN says and what it leaves open: which servers, and whether we must know who they are. Pure."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from app.settings import is_loopback

PORT = 5432


class Place(NamedTuple):
    """A server: a name or an address, or the folder of its Unix socket."""

    host: str
    port: int


def places(dsn: str) -> list[Place]:
    """In the order of the list. None when the DSN names no host: then the driver looks where it always does, on this machine."""
    parts, options = _parts(dsn)
    hosts = parts.netloc.rpartition("@")[2]
    if hosts:
        return [_place(unquote(spec), PORT) for spec in hosts.split(",")]
    named = [spec for spec in options.get("host", "").split(",") if spec]
    ports = [int(port) for port in options.get("port", "").split(",") if port] or [PORT]
    return [_place(spec, ports[min(index, len(ports) - 1)]) for index, spec in enumerate(named)]


def must_be_verified(dsn: str) -> bool:
    """Whether the DSN leaves open how its connections are secured although one of them leaves this machine."""
    return "sslmode" not in _parts(dsn)[1] and not all((place.host.startswith("/") or is_loopback(place.host)) for place in places(dsn))


def names_a_root(dsn: str) -> bool:
    """Whether it names the certificate authority; otherwise the system's are trusted."""
    return "sslrootcert" in _parts(dsn)[1]


def _parts(dsn: str) -> tuple[SplitResult, Mapping[str, str]]:
    parts = urlsplit(dsn)
    return parts, dict(parse_qsl(parts.query))


def _place(spec: str, port: int) -> Place:
    if spec.startswith("/"):
        return Place(spec, port)
    if spec.startswith("["):
        host, _, rest = spec[1:].partition("]")
        return Place(host, int(rest[1:] or port))
    host, _, own = spec.partition(":")
    return Place(host, int(own or port))
