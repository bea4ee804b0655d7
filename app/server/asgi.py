"""Calls the ASGI app, for requests that have no fast route."""

from starlette.types import ASGIApp, Message, Scope

from app.errors import PayloadTooLarge
from app.server.exchange import Exchange, Handler
from app.server.limits import SMALL_BODY


def asgi_handler(app: ASGIApp) -> Handler:
    """All pieces of a response are sent in one write: no route streams its response."""

    async def handle(scope: Scope, exchange: Exchange) -> None:
        start: Message = {}
        pieces: list[bytes] = []
        is_received = False

        async def receive() -> Message:
            """Our routes use `app.http.request_body` instead, with limits of their own."""
            nonlocal is_received
            if is_received:
                await exchange.wait_for_disconnect()
                return {"type": "http.disconnect"}
            is_received = True
            if not await exchange.receive(SMALL_BODY):
                raise PayloadTooLarge(f"the body has more than {SMALL_BODY} bytes", SMALL_BODY)
            return {"type": "http.request", "body": bytes(exchange.take_body())}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            pieces.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body, headers = b"".join(pieces), start["headers"]
            if start["status"] not in (204, 304) and not any(name == b"content-length" for name, _ in headers):
                headers = [*headers, (b"content-length", b"%d" % len(body))]
            await exchange.respond(start["status"], headers, b"" if scope["method"] == "HEAD" else body)

        await app(scope, receive, send)

    return handle
