"""The proxy of a run implements its fault modes: tested with an echo server behind it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Network
from tests.ports import free_ports

TIMEOUT_SECONDS = 0.3  # seconds in which a response that is not held back would arrive


class Echo:
    """An echo server that records whether it received data."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(100):
                self.received.set()
                connection.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path / "log")
    yield network
    network.close()


@pytest.fixture
def client(echo: Echo, network: Network) -> Iterator[socket.socket]:
    """A client that has received a response once."""
    (port,) = free_ports(1)
    network.open_link("leg", str(port), str(echo.port))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        assert exchange(client) == b"hello"
        echo.received.clear()
        yield client


def exchange(client: socket.socket) -> bytes:
    client.sendall(b"hello")
    return client.recv(100)


def test_lost_replies_forwards_requests_and_drops_responses(
    client: socket.socket, echo: Echo, network: Network
) -> None:
    network.set_mode(["leg"], "lost_replies")
    client.sendall(b"hello")
    assert echo.received.wait(20)
    client.settimeout(TIMEOUT_SECONDS)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(20)
    network.set_mode(["leg"], "open")
    assert client.recv(100) == b""


def test_data_held_back_by_a_black_hole_may_arrive_late(client: socket.socket, echo: Echo, network: Network) -> None:
    network.set_mode(["leg"], "black_hole")
    client.sendall(b"hello")
    assert not echo.received.wait(TIMEOUT_SECONDS)
    network.set_mode(["leg"], "open", late=True)
    assert client.recv(100) == b"hello"


def test_data_held_back_by_a_black_hole_may_never_arrive(client: socket.socket, echo: Echo, network: Network) -> None:
    network.set_mode(["leg"], "black_hole")
    client.sendall(b"hello")
    network.set_mode(["leg"], "open")
    assert is_reset(client)
    assert not echo.received.is_set()


def test_cut_resets_connections_and_refuses_new_ones(client: socket.socket, echo: Echo, network: Network) -> None:
    address = client.getpeername()
    network.set_mode(["leg"], "cut")
    assert is_reset(client)
    with socket.create_connection(address, timeout=20) as another:
        assert is_reset(another)
    network.set_mode(["leg"], "open")
    with socket.create_connection(address, timeout=20) as another:
        assert exchange(another) == b"hello"


def is_reset(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True
