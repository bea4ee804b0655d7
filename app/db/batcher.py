"""Many callers, one statement: who comes while one is on its way shares the next. Nobody waits for a timer."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import asyncpg

from app.db.outcomes import nothing_written, wrote
from app.errors import DatabaseUnavailable

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

MOST = 128  # in one statement: the callers that a process serves at once, and not more memory than that many payloads


class _Waiting(NamedTuple, Generic[T, R]):
    thing: T
    answer: "asyncio.Future[R]"


class Batcher(Generic[K, T, R]):
    """One statement at a time for each key (a lane). `run` gets the key and what its callers brought, and answers each, in their order.

    Every caller is answered after the commit. One caller's bad row never fails another's: if the database refuses what they brought
    together, each is tried alone. Who has waited for `patience` seconds behind a statement that does not end goes away unserved.
    """

    def __init__(self, name: str, run: Callable[[K, list[T]], Awaitable[Sequence[R]]], patience: float) -> None:
        self._name = name
        self._run = run
        self._patience = patience
        self._lines: dict[K, list[_Waiting[T, R]]] = {}  # those of which somebody is being served
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, key: K, thing: T) -> R:
        waiting = _Waiting[T, R](thing, asyncio.get_running_loop().create_future())
        line = self._lines.get(key)
        if line is None:
            self._begin(key, waiting)
        else:
            line.append(waiting)
        try:
            answer = await waiting.answer
        except DatabaseUnavailable as error:
            if error.outcome == "unknown":
                wrote()
            raise
        wrote()
        return answer

    def _begin(self, key: K, first: _Waiting[T, R]) -> None:
        """In a context of its own: what this caller has done before does not concern those who share its statement. It begins when the
        loop comes round, so that all who have come in with the same look at the sockets are in it."""
        self._lines[key] = [first]
        task = asyncio.get_running_loop().create_task(self._serve(key), name=self._name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: K) -> None:
        while self._lines[key]:
            line = self._lines[key]
            batch, self._lines[key] = line[:MOST], line[MOST:]
            timer = _Every(self._patience, partial(self._send_away, key))
            await self._answer(key, batch)
            timer.stop()
        del self._lines[key]

    def _send_away(self, key: K) -> None:
        """All who are in line: the next look at them may be as far away again."""
        line, self._lines[key] = self._lines[key], []
        _fail(line, DatabaseUnavailable("the statement before this one does not end", "not_done"))

    async def _answer(self, key: K, batch: Sequence[_Waiting[T, R]]) -> None:
        nothing_written()
        try:
            answers = await self._run(key, [waiting.thing for waiting in batch])
        except asyncpg.PostgresError as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for waiting in batch:
                    await self._answer(key, [waiting])
        except Exception as error:
            _fail(batch, error)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)


class _Every:
    """Calls every so many seconds, until it is stopped."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._begin()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._again)

    def _again(self) -> None:
        self._call()
        self._begin()

    def stop(self) -> None:
        self._timer.cancel()


def _fail(batch: Sequence[_Waiting[T, R]], error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
