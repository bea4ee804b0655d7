"""Calls an ASGI app with a request, and sends the response of the app.

Requests without a fast route are handled this way.
"""

from starlette.types import ASGIApp, Message, Scope

from app.errors import PayloadTooLarge
from app.server.exchange import Exchange
from app.server.limits import SMALL_BODY


async def call_asgi(app: ASGIApp, scope: Scope, exchange: Exchange) -> None:
    """Calls the app, and sends its response.

    If the head of the response has a Content-Length, sends each piece of the body as soon as the
    app provides it. Otherwise collects the pieces, and sends the complete response in one write.
    """
    start: Message = {}
    pieces: list[bytes] = []
    is_received = False

    async def receive() -> Message:
        """Returns the whole body, at most SMALL_BODY bytes. The second call waits until the client
        disconnects, as ASGI requires.

        The broker's routes do not use this function: `app.http.bodies` reads their bodies, with
        other limits.
        """
        nonlocal is_received
        if is_received:
            await exchange.wait_for_disconnect()
            return {"type": "http.disconnect"}
        is_received = True
        body = await exchange.receive(SMALL_BODY)
        if body is None:
            raise PayloadTooLarge(f"the body has more than {SMALL_BODY} bytes", SMALL_BODY)
        return {"type": "http.request", "body": b"".join(body)}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        piece, headers = message.get("body", b""), start["headers"]
        has_length = any(name == b"content-length" for name, _ in headers)
        is_head = scope["method"] == "HEAD"
        if exchange.is_answered:
            await exchange.send_more(b"" if is_head else piece)
            return
        pieces.append(piece)
        if message.get("more_body") and not has_length:
            return
        body = b"".join(pieces)
        if start["status"] not in (204, 304) and not has_length:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        length = next((int(value) for name, value in headers if name == b"content-length"), 0)
        await exchange.respond(start["status"], headers, b"" if is_head else body, length - len(body))

    await app(scope, receive, send)
