"""The broker connects to Postgres only: no module can open another connection.

See docs/reliability/faults.md#e7. Payloads and schemas may contain URLs; the broker never follows
them.
"""

import ast
from pathlib import Path

from tests.paths import ROOT
from tests.table import table

APP = ROOT / "app"
# Modules and functions that can open a connection.
CLIENT_MODULES = {
    "httpx",
    "requests",
    "urllib.request",
    "urllib3",
    "http.client",
    "aiohttp",
    "ftplib",
    "smtplib",
    "telnetlib",
    "xmlrpc",
}
CLIENT_FUNCTIONS = {
    "create_connection",
    "open_connection",
    "open_unix_connection",
    "create_datagram_endpoint",
    "urlopen",
    "getaddrinfo",
}
CONNECT = {"connect"}  # asyncpg.connect: only in app/db


def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imported(nodes: list[ast.AST]) -> set[str]:
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return modules | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def called(nodes: list[ast.AST]) -> set[str]:
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@table("path", sorted(APP.rglob("*.py")))
def test_no_module_can_open_outbound_connections(path: Path) -> None:
    nodes = nodes_of(path)
    assert not imported(nodes) & CLIENT_MODULES
    assert not called(nodes) & CLIENT_FUNCTIONS
    if path.parent.name != "db":
        assert not called(nodes) & CONNECT


def test_module_with_an_http_client_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "webhook.py").write_text("import httpx\nhttpx.post('http://169.254.169.254')\n")
    assert imported(nodes_of(tmp_path / "webhook.py")) & CLIENT_MODULES
