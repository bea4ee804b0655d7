"""DSN parsing: the hosts, and whether the connection must verify the server's certificate."""

import ssl

import pytest

from app.db import tls
from app.db.dsn import Host, hosts, requires_tls
from tests.table import table


@table(
    ("dsn", "expected"),
    [
        ("postgresql://", []),
        ("postgresql:///db", []),
        ("postgresql://u:p@h/db", [("h", 5432)]),
        ("postgresql://u:p@h:6432/db", [("h", 6432)]),
        ("postgresql://a:1,b,c:3/db?target_session_attrs=primary", [("a", 1), ("b", 5432), ("c", 3)]),
        ("postgresql://u@/db?host=/run/a,/run/b&port=1,2", [("/run/a", 1), ("/run/b", 2)]),
        ("postgresql://u@/db?host=a,b&port=7", [("a", 7), ("b", 7)]),
        ("postgresql://[::1]:99/db", [("::1", 99)]),
        ("postgresql://%2Frun%2Fpg/db", [("/run/pg", 5432)]),
    ],
)
def test_hosts_are_parsed_like_the_driver_parses_them(dsn: str, expected: list[tuple[str, int]]) -> None:
    assert hosts(dsn) == [Host(*address) for address in expected]


@table(
    ("dsn", "expected"),
    [
        ("postgresql://db.example/x", True),
        ("postgresql://10.0.0.7/x", True),
        ("postgresql://localhost,db.example/x", True),
        ("postgresql://db.example/x?sslmode=disable", False),
        ("postgresql://db.example/x?sslmode=require", False),
        ("postgresql://localhost/x", False),
        ("postgresql://127.0.0.1/x", False),
        ("postgresql://[::1]/x", False),
        ("postgresql:///x?host=/run/postgresql", False),
        ("postgresql:///x", False),
    ],
)
def test_remote_host_without_sslmode_requires_tls(dsn: str, expected: bool) -> None:
    assert requires_tls(dsn) is expected


@table(
    ("environment", "dsn", "expected"),
    [
        ("db.example", "postgresql:///x", True),
        ("db.example:6432", "postgresql://u@/x?port=5433", True),
        ("localhost,db.example", "postgresql:///x", True),
        ("db.example", "postgresql:///x?sslmode=disable", False),
        ("db.example", "postgresql://localhost/x", False),
        ("db.example", "postgresql:///x?host=/run/postgresql", False),
        ("localhost,[::1]:5433", "postgresql:///x", False),
        ("/run/postgresql", "postgresql:///x", False),
        ("", "postgresql:///x", False),
        ("localhost", "postgresql:///x?service=main", True),
        ("db.example", "postgresql://localhost/x?service=main", False),
    ],
)
def test_remote_host_outside_the_dsn_requires_tls(
    monkeypatch: pytest.MonkeyPatch, environment: str, dsn: str, expected: bool
) -> None:
    monkeypatch.setenv("PGHOST", environment)
    assert requires_tls(dsn) is expected


def test_tls_verifies_certificate_and_host_name() -> None:
    context = tls.options("postgresql://db.example/x")["ssl"]
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls.options("postgresql://db.example/x?sslmode=disable") == {}
