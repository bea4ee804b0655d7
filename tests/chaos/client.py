"""A client that writes down what it asks and what it hears, and tells three outcomes apart: done, certainly not done, unknown."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from tests.api import Json, when
from tests.chaos.history import SENT_AWAY, History, Item, Kind, Op, now

Reader = Callable[[Json], list[Item]]

TIMEOUT = httpx.Timeout(5.0, connect=1.5)
# The connection could not be made: nothing has been sent.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


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
        return not self.body.get("jobs") and bool(self.body.get("poll_after_ms"))

    @property
    def again(self) -> bool:
        """Whether to ask again: nobody knows, or the server was not able to, or it sent us away (as it drains) without a look."""
        return self.sent_away or self.kind == "info" or self.status in (0, 429, 503) or self.body.get("code") == "idempotency_key_in_use"


class Client:
    """Talks to any broker: another one for each call."""

    def __init__(self, bases: Sequence[str], history: History, dice: random.Random) -> None:
        self._bases = bases
        self._history = history
        self._dice = dice
        self._http = httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=200, keepalive_expiry=60))

    async def call(self, f: str, path: str, body: Json, *, key: str = "", items: Sequence[Item] = (), read: Reader | None = None) -> Answer:
        """Items are what is asked for; `read` says what was told of each job, if it was done."""
        call, via, t0 = self._history.next_call(), self._dice.randrange(len(self._bases)), now()
        self._history.write(Op(f=f, type="invoke", call=call, proc=self._history.proc, t0=t0, key=key, via=via, items=list(items)))
        answer = await self._ask(f"{self._bases[via]}{path}", body, key)
        told = read(answer.body) if answer.ok and read else []
        self._history.write(
            Op(
                f=f,
                type=answer.kind,
                call=call,
                proc=self._history.proc,
                t0=t0,
                t1=now(),
                key=key,
                via=via,
                status=answer.status,
                code=SENT_AWAY if answer.sent_away else str(answer.body.get("code", "")),
                db_at=instant(answer.body.get("server_time")),
                items=told,
            )
        )
        return answer

    async def _ask(self, url: str, body: Json, key: str) -> Answer:
        headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
        try:
            response = await self._http.post(url, content=msgspec.json.encode(body), headers=headers)
            told: Json = msgspec.json.decode(response.content)
        except NOT_SENT as error:
            return Answer("fail", 0, {"code": type(error).__name__})
        except (httpx.TransportError, msgspec.DecodeError) as error:
            return Answer("info", 0, {"code": type(error).__name__})
        return Answer(_kind(response.status_code, told), response.status_code, told)


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
