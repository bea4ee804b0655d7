"""TLS connections to the database: which certificates are accepted, and one readable line for a
mistake in the URL.
"""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from app.db.primary import PrimaryConnector
from tests.api_client import Api
from tests.broker import threaded_broker
from tests.conftest import TEST_SETTINGS
from tests.contract.cli.command import run
from tests.database import Loop, create_database

FOLDER = Path(__file__).parent / "tls"
CERTIFICATE, KEY = FOLDER / "certificate.pem", FOLDER / "key.pem"  # for `localhost`, self-signed, valid until 2126
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


class TlsServer:
    """A TLS proxy in front of Postgres, because the binaries of the tests have no TLS. Rejects
    clients without TLS.
    """

    def __init__(self, dsn: str, loop: Loop) -> None:
        options = parse_qs(urlsplit(dsn).query)
        self._socket = f"{options['host'][0]}/.s.PGSQL.{options['port'][0]}"
        self._path = urlsplit(dsn).path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, KEY)
        self._loop = loop
        self._server = loop.run(self._listen())

    def dsn(self, host: str, options: str) -> str:
        return f"postgresql://postgres@{host}:{self._port()}{self._path}?{options}"

    def dsn_without_host(self) -> str:
        return f"postgresql://postgres@{self._path}?port={self._port()}"

    def _port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        self._loop.run(self._close())

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            assert await reader.readexactly(8) == SSL_REQUEST
            writer.write(b"S")
            await writer.start_tls(self._context)
            replies, server_writer = await asyncio.open_unix_connection(self._socket)
            writers.append(server_writer)
            pumps = [asyncio.ensure_future(pump) for pump in (_pump(reader, server_writer), _pump(replies, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            pass  # the client rejected the certificate
        finally:
            for open_writer in writers:
                open_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@pytest.fixture(scope="module")
def server(postgres: str, loop: Loop) -> Iterator[TlsServer]:
    server = TlsServer(create_database(postgres, loop, "behind_tls"), loop)
    yield server
    server.close()


@pytest.fixture
def trusted_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the system trust the server's certificate, and sets a home folder without certificates."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    monkeypatch.setenv("HOME", "/nonexistent")


ACCEPTED = {
    "verify-full, system": ("localhost", "sslmode=verify-full"),
    "verify-full, system by name": ("localhost", "sslmode=verify-full&sslrootcert=system"),
    "verify-full, file": ("localhost", f"sslmode=verify-full&sslrootcert={CERTIFICATE}"),
    "verify-ca, another name": ("127.0.0.1", "sslmode=verify-ca"),
    "require, another name": ("127.0.0.1", "sslmode=require"),
    "require with a root, another name": ("127.0.0.1", f"sslmode=require&sslrootcert={CERTIFICATE}"),
    "verify-full with a client certificate": ("localhost", f"sslmode=verify-full&sslcert={CERTIFICATE}&sslkey={KEY}"),
}

REFUSED = {
    "another name": ("127.0.0.1", "sslmode=verify-full", "certificate is not valid for '127.0.0.1'"),
    "no root file": (
        "localhost",
        "sslmode=verify-full&sslrootcert=/nowhere/ca.pem",
        "/nowhere/ca.pem, which sslrootcert in the database URL",
    ),
    "no root file, require": ("localhost", "sslmode=require&sslrootcert=/nowhere/ca.pem", "No such file or directory"),
    "a root file without certificates": (
        "localhost",
        f"sslmode=verify-ca&sslrootcert={__file__}",
        "no usable certificate",
    ),
    "no client certificate": (
        "localhost",
        "sslmode=require&sslcert=/nowhere/c.pem&sslkey=/nowhere/k.pem",
        "which sslcert in the database URL",
    ),
    "a client certificate without its key": (
        "localhost",
        f"sslmode=verify-full&sslcert={CERTIFICATE}",
        "no usable certificate or key",
    ),
    "no such mode": ("localhost", "sslmode=verify", "sslmode is verify, and must be one of"),
}


async def connection_error(dsn: str) -> str:
    """The error message, or `connected`."""
    try:
        connection = await PrimaryConnector(dsn).connect(timeout=20)
    except (OSError, asyncpg.InterfaceError) as error:
        return str(error)
    await connection.close()
    return "connected"


@pytest.mark.usefixtures("trusted_certificate")
def test_sslmode_decides_which_certificates_are_accepted(server: TlsServer, loop: Loop) -> None:
    found = {name: loop.run(connection_error(server.dsn(host, options))) for name, (host, options) in ACCEPTED.items()}
    assert found == dict.fromkeys(ACCEPTED, "connected")


@pytest.mark.usefixtures("trusted_certificate")
def test_errors_name_what_is_wrong_with_the_url_or_the_certificate(server: TlsServer, loop: Loop) -> None:
    found = {
        name: loop.run(connection_error(server.dsn(host, options))) for name, (host, options, _) in REFUSED.items()
    }
    assert {name: text for name, text in found.items() if REFUSED[name][2] not in text} == {}


def test_certificate_of_a_host_in_pghost_is_verified(
    server: TlsServer, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "0.0.0.0")  # leads to this machine, but is no loopback address
    assert "certificate verify failed" in loop.run(connection_error(server.dsn_without_host()))


def test_untrusted_certificate_is_reported_in_a_503(server: TlsServer, loop: Loop) -> None:
    dsn = server.dsn("localhost", "sslmode=verify-full")
    assert "certificate verify failed" in loop.run(connection_error(dsn))
    with threaded_broker(TEST_SETTINGS, dsn) as broker:
        problem = Api(broker.http, "tls").enqueue(status=503)
    assert (
        problem["detail"]
        == "the certificate of the database server cannot be verified: check the host and sslrootcert in DATABASE_URL"
    )


COMMANDS = {
    (
        "serve",
        "sslmode=verify-full&sslrootcert=/nowhere/ca.pem",
    ): "/nowhere/ca.pem, which sslrootcert in the database URL",
    ("migrate", "sslmode=verify"): "sslmode is verify",
    ("migrate", "target_session_attrs=some"): "target_session_attrs",
}


def test_commands_end_with_one_line_if_the_url_is_wrong(server: TlsServer) -> None:
    for (command, options), message in COMMANDS.items():
        completed = run(command, DATABASE_URL=server.dsn("localhost", options), LONGSHORE_PORT="0")
        assert (completed.returncode, len(completed.stderr.splitlines()), message in completed.stderr) == (
            1,
            1,
            True,
        ), completed.stderr
