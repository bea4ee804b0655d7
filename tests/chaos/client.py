"""A client that writes down what it asks and what it hears, and tells three outcomes apart: done, certainly not done, unknown."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from tests.api import Json, when
from tests.chaos.history import SENT_AWAY, History, Item, Kind, Op, now

Reader = Callable[[Json], list[Item]]

TIMEOUT = httpx.Timeout(5.0, connect=1.5)
# The connection could not be made: nothing has been sent.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
AWAY_MS = 1000  # poll_after_ms of a draining broker; an exhausted rate has a smaller one
REVOKED = 0.01  # share of calls with an API key that is known to be revoked


@dataclass(frozen=True)
class Answer:
    kind: Kind
    status: int
    body: Json

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    @property
    def sent_away(self) -> bool:
        return not self.body.get("jobs") and int(self.body.get("poll_after_ms", 0)) >= AWAY_MS

    @property
    def again(self) -> bool:
        """Whether to ask again: nobody knows, or the server was not able to, or it sent us away (as it drains) without a look."""
        return (
            self.sent_away
            or self.kind == "info"
            or self.status in (0, 401, 429, 503)
            or self.body.get("code") == "idempotency_key_in_use"
        )


@dataclass(frozen=True)
class Part:
    """One operation of a call in the history: the requested items, and the items of the response."""

    f: str
    items: Sequence[Item] = ()
    queue: str = ""
    read: Reader | None = None

    def told(self, answer: Answer) -> list[Item]:
        return self.read(answer.body) if answer.ok and self.read else []


class ApiKeys:
    """The API keys of a client's role, by name. A client uses the first until it is refused, and then the next, but sometimes the first."""

    def __init__(self, tokens: dict[str, str], dice: random.Random) -> None:
        self._tokens = list(tokens.items())
        self._dice = dice
        self._first = 0

    @classmethod
    def read(cls, folder: Path, role: str, dice: random.Random) -> "ApiKeys":
        return cls(msgspec.json.decode((folder / "keys.json").read_bytes())[role], dice)

    def choose(self) -> tuple[str, str]:
        """The name of a key, and the key."""
        return self._tokens[0 if self._dice.random() < REVOKED else self._first]

    def refused(self, name: str) -> None:
        if name == self._tokens[0][0]:
            self._first = len(self._tokens) - 1


class Client:
    """Talks to any broker: another one for each call."""

    def __init__(self, bases: Sequence[str], history: History, dice: random.Random, keys: ApiKeys) -> None:
        self._bases = bases
        self._history = history
        self._dice = dice
        self._keys = keys
        self._http = httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=200, keepalive_expiry=60))

    async def call(
        self, f: str, path: str, body: Json, *, key: str = "", items: Sequence[Item] = (), read: Reader | None = None
    ) -> Answer:
        """Items are what is asked for; `read` says what was told of each job, if it was done."""
        return await self.call_for([Part(f, items, read=read)], path, body, key=key)

    async def call_for(
        self, parts: Sequence[Part], path: str, body: Json | None, *, key: str = "", method: str = "POST"
    ) -> Answer:
        """A call with several parts, each of which is an operation of the history."""
        via, t0, (caller, token) = self._dice.randrange(len(self._bases)), now(), self._keys.choose()
        begun = [
            Op(
                f=part.f,
                type="invoke",
                call=self._history.next_call(),
                proc=self._history.proc,
                t0=t0,
                key=key,
                queue=part.queue,
                via=via,
                caller=caller,
                items=list(part.items),
            )
            for part in parts
        ]
        for op in begun:
            self._history.write(op)
        answer = await self._ask(method, f"{self._bases[via]}{path}", body, key, token)
        for op, part in zip(begun, parts, strict=True):
            self._history.write(_ended(op, answer, part.told(answer)))
        if answer.status == 401:
            self._keys.refused(caller)
        return answer

    def note(self, f: str, kind: Kind, items: Sequence[Item], *, told: Sequence[Item] = (), t0: float) -> None:
        """Records an operation that is no HTTP call, or that leaves something out of one."""
        begun = Op(
            f=f, type="invoke", call=self._history.next_call(), proc=self._history.proc, t0=t0, items=list(items)
        )
        self._history.write(begun)
        self._history.write(msgspec.structs.replace(begun, type=kind, t1=now(), items=list(told)))

    async def _ask(self, method: str, url: str, body: Json | None, key: str, token: str) -> Answer:
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"} | (
            {"idempotency-key": key} if key else {}
        )
        try:
            content = None if body is None else msgspec.json.encode(body)
            response = await self._http.request(method, url, content=content, headers=headers)
            told: Json = msgspec.json.decode(response.content)
        except NOT_SENT as error:
            return Answer("fail", 0, {"code": type(error).__name__})
        except (httpx.TransportError, msgspec.DecodeError) as error:
            return Answer("info", 0, {"code": type(error).__name__})
        if "job-duplicate" in response.headers:
            told["duplicate"] = True
        return Answer(_kind(response.status_code, told), response.status_code, told)


def _ended(begun: Op, answer: Answer, told: list[Item]) -> Op:
    code = SENT_AWAY if answer.sent_away else str(answer.body.get("code", ""))
    at = instant(answer.body.get("server_time"))
    return msgspec.structs.replace(
        begun, type=answer.kind, t1=now(), status=answer.status, code=code, db_at=at, items=told
    )


def _kind(status: int, told: Json) -> Kind:
    if status < 300:
        return "ok"
    if status >= 500 and told.get("outcome") != "not_done":
        return "info"
    return "fail"


def instant(told: object) -> float:
    return float(when(told).timestamp()) if isinstance(told, str) else 0.0


def pause(tries: int, dice: random.Random) -> float:
    """Before asking once more: longer each time, and never two clients in step."""
    return min(1.0, 0.05 * 2.0**tries) * dice.uniform(0.5, 1)
