"""A client that records its requests and responses.

It distinguishes three outcomes: done, certainly not done, unknown."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from tests.api_client import Json, parse_time
from tests.chaos.history import DEFERRED, History, Item, Kind, Op, now

Reader = Callable[[Json], list[Item]]

TIMEOUT = httpx.Timeout(5.0, connect=1.5)
# No connection: nothing was sent.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
DEFERRED_MS = 1000  # poll_after_ms of a draining broker; an exhausted rate has a smaller one
REVOKED = 0.01  # share of calls with an API key that is known to be revoked


@dataclass(frozen=True)
class Response:
    kind: Kind
    status: int
    body: Json

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    @property
    def is_deferred(self) -> bool:
        return not self.body.get("jobs") and int(self.body.get("poll_after_ms", 0)) >= DEFERRED_MS

    @property
    def should_retry(self) -> bool:
        """Returns whether to retry: the outcome is unknown, the broker could not serve the call,
        or a draining broker deferred the claim without executing it."""
        return (
            self.is_deferred
            or self.kind == "info"
            or self.status in (0, 401, 429, 503)
            or self.body.get("code") == "idempotency_key_in_use"
        )


@dataclass(frozen=True)
class Operation:
    """One operation of a call in the history: requested items, and a reader of the response's
    items."""

    f: str
    items: Sequence[Item] = ()
    queue: str = ""
    waits: bool = False
    read: Reader | None = None

    def result_items(self, response: Response) -> list[Item]:
        return self.read(response.body) if response.ok and self.read else []


class ApiKeys:
    """The API keys of a client's role, by name.

    A client uses the first key until it is rejected, then the next, but sometimes still the
    first."""

    def __init__(self, tokens: dict[str, str], rng: random.Random) -> None:
        self._tokens = list(tokens.items())
        self._rng = rng
        self._first = 0

    @classmethod
    def read(cls, folder: Path, role: str, rng: random.Random) -> "ApiKeys":
        return cls(msgspec.json.decode((folder / "keys.json").read_bytes())[role], rng)

    def choose(self) -> tuple[str, str]:
        """Returns the name of a key, and the key."""
        return self._tokens[0 if self._rng.random() < REVOKED else self._first]

    def on_rejected(self, name: str) -> None:
        if name == self._tokens[0][0]:
            self._first = len(self._tokens) - 1


class Client:
    """A client of all brokers: it chooses one at random for each call."""

    def __init__(self, bases: Sequence[str], history: History, rng: random.Random, keys: ApiKeys) -> None:
        self._bases = bases
        self._history = history
        self._rng = rng
        self._keys = keys
        self._http = httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=200, keepalive_expiry=60))

    async def call(
        self, f: str, path: str, body: Json, *, key: str = "", items: Sequence[Item] = (), read: Reader | None = None
    ) -> Response:
        """Sends a call.

        `items` are the requested ones; `read` extracts the items of a success response."""
        return await self.call_for([Operation(f, items, read=read)], path, body, key=key)

    async def call_for(
        self, operations: Sequence[Operation], path: str, body: Json | None, *, key: str = "", method: str = "POST"
    ) -> Response:
        """Sends a call that consists of several operations of the history."""
        via, t0, (caller, token) = self._rng.randrange(len(self._bases)), now(), self._keys.choose()
        invocations = [
            Op(
                f=operation.f,
                type="invoke",
                call=self._history.next_call(),
                proc=self._history.proc,
                t0=t0,
                key=key,
                queue=operation.queue,
                waits=operation.waits,
                via=via,
                caller=caller,
                items=list(operation.items),
            )
            for operation in operations
        ]
        for op in invocations:
            self._history.write(op)
        response = await self._send(method, f"{self._bases[via]}{path}", body, key, token)
        for op, operation in zip(invocations, operations, strict=True):
            self._history.write(_result_of(op, response, operation.result_items(response)))
        if response.status == 401:
            self._keys.on_rejected(caller)
        return response

    def record(
        self, f: str, kind: Kind, items: Sequence[Item], *, result_items: Sequence[Item] = (), t0: float
    ) -> None:
        """Records an operation that is not an HTTP call, or the effect of an omission in one."""
        invocation = Op(
            f=f, type="invoke", call=self._history.next_call(), proc=self._history.proc, t0=t0, items=list(items)
        )
        self._history.write(invocation)
        self._history.write(msgspec.structs.replace(invocation, type=kind, t1=now(), items=list(result_items)))

    async def _send(self, method: str, url: str, body: Json | None, key: str, token: str) -> Response:
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"} | (
            {"idempotency-key": key} if key else {}
        )
        try:
            content = None if body is None else msgspec.json.encode(body)
            response = await self._http.request(method, url, content=content, headers=headers)
            decoded: Json = msgspec.json.decode(response.content)
        except NOT_SENT as error:
            return Response("fail", 0, {"code": type(error).__name__})
        except (httpx.TransportError, msgspec.DecodeError) as error:
            return Response("info", 0, {"code": type(error).__name__})
        if "job-duplicate" in response.headers:
            decoded["duplicate"] = True
        return Response(_kind(response.status_code, decoded), response.status_code, decoded)


def _result_of(invocation: Op, response: Response, items: list[Item]) -> Op:
    code = DEFERRED if response.is_deferred else str(response.body.get("code", ""))
    at = instant(response.body.get("server_time"))
    return msgspec.structs.replace(
        invocation, type=response.kind, t1=now(), status=response.status, code=code, db_at=at, items=items
    )


def _kind(status: int, body: Json) -> Kind:
    if status < 300:
        return "ok"
    if status >= 500 and body.get("outcome") != "not_done":
        return "info"
    return "fail"


def instant(value: object) -> float:
    return float(parse_time(value).timestamp()) if isinstance(value, str) else 0.0


def pause(tries: int, rng: random.Random) -> float:
    """Returns the seconds before a retry: growing, with jitter so that clients do not
    synchronize."""
    return min(1.0, 0.05 * 2.0**tries) * rng.uniform(0.5, 1)
