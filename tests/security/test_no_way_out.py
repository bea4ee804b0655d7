"""The broker calls nobody but Postgres: nothing in its code can (E7). Payloads and schemas may name URLs; nobody follows them."""

import ast
from pathlib import Path

import pytest

APP = Path(__file__).parents[2] / "app"
# What can open a connection, and the files that may use it: to Postgres, and to listen.
WAYS_OUT = {
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
CALLS_OUT = {
    "create_connection",
    "open_connection",
    "open_unix_connection",
    "create_datagram_endpoint",
    "urlopen",
    "getaddrinfo",
}
CONNECTING = {"connect"}  # asyncpg.connect: only below app/db, and one question of the command line


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return modules | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def called(path: Path) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("path", sorted(APP.rglob("*.py")), ids=lambda path: str(path.relative_to(APP)))
def test_no_module_can_call_out(path: Path) -> None:
    assert not imported(path) & WAYS_OUT
    assert not called(path) & CALLS_OUT
    if path.parent.name != "db" and path.name != "__main__.py":
        assert not called(path) & CONNECTING


def test_one_that_could_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "webhook.py").write_text("import httpx\nhttpx.post('http://169.254.169.254')\n")
    assert imported(tmp_path / "webhook.py") & WAYS_OUT
