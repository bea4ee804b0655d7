"""The socket that a broker listens on."""

import socket


def bind(host: str, port: int) -> socket.socket:
    """Binds a socket to the address, but does not listen yet. Call this before anything else is set
    up.

    If the port is in use, the broker exits before it creates a data folder (initdb) that would be
    left behind. The system refuses connections during the set-up, as if the broker were not
    running.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _listen_error(error, host, port) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Begins to listen. Raises OSError if another process has bound the same address and listens
    already."""
    host, port = listener.getsockname()[:2]
    try:
        listener.listen()
    except OSError as error:
        raise _listen_error(error, host, port) from error


def base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen_error(error: OSError, host: str, port: int) -> OSError:
    return OSError(f"cannot listen on {host} port {port}: {error.strerror}; change LONGSHORE_HOST or LONGSHORE_PORT")
