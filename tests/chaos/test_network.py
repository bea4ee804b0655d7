"""The network of a run does what its nemeses say: shown on an echo behind it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Network
from tests.ports import free_ports

TIMEOUT_SECONDS = 0.3  # seconds in which an answer that can come would be there


class Echo:
    """What arrives goes back, and is remembered."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                there, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(there,), daemon=True).start()

    def _answer(self, there: socket.socket) -> None:
        with there:
            while data := there.recv(100):
                self.received.set()
                there.sendall(data)

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
    """One that has been answered once."""
    (port,) = free_ports(1)
    network.open_link("leg", str(port), str(echo.port))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        assert ask(client) == b"hello"
        echo.received.clear()
        yield client


def ask(client: socket.socket) -> bytes:
    client.sendall(b"hello")
    return client.recv(100)


def test_with_lost_replies_the_request_arrives_and_the_answer_does_not(
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


def test_what_a_black_hole_holds_back_may_arrive_late(client: socket.socket, echo: Echo, network: Network) -> None:
    network.set_mode(["leg"], "black_hole")
    client.sendall(b"hello")
    assert not echo.received.wait(TIMEOUT_SECONDS)
    network.set_mode(["leg"], "open", late=True)
    assert client.recv(100) == b"hello"


def test_or_never(client: socket.socket, echo: Echo, network: Network) -> None:
    network.set_mode(["leg"], "black_hole")
    client.sendall(b"hello")
    network.set_mode(["leg"], "open")
    assert died(client)
    assert not echo.received.is_set()


def test_a_cut_ends_connections_and_lets_none_begin(client: socket.socket, echo: Echo, network: Network) -> None:
    way = client.getpeername()
    network.set_mode(["leg"], "cut")
    assert died(client)
    with socket.create_connection(way, timeout=20) as another:
        assert died(another)
    network.set_mode(["leg"], "open")
    with socket.create_connection(way, timeout=20) as another:
        assert ask(another) == b"hello"


def died(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True
